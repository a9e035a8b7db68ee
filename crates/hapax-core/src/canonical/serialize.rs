//! Serde's data model, in the shapes of `serde_json`, onto the canonical [`Writer`].
//!
//! Invariant: a value's bytes are those of its `serde_json` text, canonicalised, but without the detour.

use std::fmt;

use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::CanonicalError;
use super::parse::canonicalize;
use super::writer::{OpenArray, OpenObject, Writer};

type Result<T = ()> = std::result::Result<T, CanonicalError>;

/// How `serde_json` marks a struct whose only field is JSON text: its `RawValue`, and its `Number` in a build where
/// someone turned on `arbitrary_precision`.
const RAW_TEXT: [&str; 2] = ["$serde_json::private::RawValue", "$serde_json::private::Number"];

macro_rules! integers {
    ($($method:ident($type:ty))*) => {$(
        fn $method(self, value: $type) -> Result<Self::Ok> {
            self.whole(value)
        }
    )*};
}

impl Writer {
    fn whole(&mut self, value: impl fmt::Display) -> Result {
        self.integer(value);
        Ok(())
    }

    fn null(&mut self) -> Result {
        self.raw("null");
        Ok(())
    }

    fn array(&mut self, variant: Option<&'static str>) -> Result<Array<'_>> {
        if let Some(variant) = variant {
            self.open_tag(variant)?;
        }
        let open = self.open_array()?;
        Ok(Array { writer: self, open, tagged: variant.is_some() })
    }

    fn object(&mut self, variant: Option<&'static str>) -> Result<Object<'_>> {
        if let Some(variant) = variant {
            self.open_tag(variant)?;
        }
        let open = self.open_object()?;
        Ok(Object { writer: self, open, tagged: variant.is_some(), awaits_value: false })
    }
}

impl<'w> Serializer for &'w mut Writer {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = Array<'w>;
    type SerializeTuple = Array<'w>;
    type SerializeTupleStruct = Array<'w>;
    type SerializeTupleVariant = Array<'w>;
    type SerializeMap = Object<'w>;
    type SerializeStruct = Struct<'w>;
    type SerializeStructVariant = Object<'w>;

    integers! {
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128)
    }

    fn serialize_bool(self, value: bool) -> Result {
        self.raw(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result {
        self.float(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result {
        self.float(value)
    }

    fn serialize_char(self, value: char) -> Result {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result {
        self.string(text);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result {
        self.collect_seq(bytes)
    }

    fn serialize_none(self) -> Result {
        self.null()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result {
        self.null()
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result {
        self.null()
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result {
        if RAW_TEXT.contains(&name) { raw_text(self, value) } else { value.serialize(self) }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result {
        self.open_tag(variant)?;
        value.serialize(&mut *self)?;
        self.close_tag();
        Ok(())
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Array<'w>> {
        self.array(None)
    }

    fn serialize_tuple(self, _len: usize) -> Result<Array<'w>> {
        self.array(None)
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Array<'w>> {
        self.array(None)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Array<'w>> {
        self.array(Some(variant))
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Object<'w>> {
        self.object(None)
    }

    fn serialize_struct(self, name: &'static str, _len: usize) -> Result<Struct<'w>> {
        if RAW_TEXT.contains(&name) {
            Ok(Struct::RawText(self))
        } else {
            self.object(None).map(Struct::Object)
        }
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Object<'w>> {
        self.object(Some(variant))
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result {
        self.display_string(value).map_err(CanonicalError::custom)
    }
}

pub(super) struct Array<'w> {
    writer: &'w mut Writer,
    open: OpenArray,
    tagged: bool,
}

impl Array<'_> {
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        self.writer.begin_element(&self.open);
        value.serialize(&mut *self.writer)
    }

    fn close(self) {
        self.writer.close_array();
        if self.tagged {
            self.writer.close_tag();
        }
    }
}

macro_rules! array_access {
    ($($trait:ident::$method:ident)*) => {$(
        impl $trait for Array<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
                self.element(value)
            }

            fn end(self) -> Result {
                self.close();
                Ok(())
            }
        }
    )*};
}

array_access! {
    SerializeSeq::serialize_element
    SerializeTuple::serialize_element
    SerializeTupleStruct::serialize_field
    SerializeTupleVariant::serialize_field
}

pub(super) struct Object<'w> {
    writer: &'w mut Writer,
    open: OpenObject,
    tagged: bool,
    awaits_value: bool,
}

impl Object<'_> {
    fn field<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result {
        self.writer.begin_key(&self.open);
        let plain = self.writer.string(key);
        self.writer.end_key(&mut self.open, plain)?;
        value.serialize(&mut *self.writer)?;
        self.writer.end_value();
        Ok(())
    }

    fn close(self) -> Result {
        self.writer.close_object(&self.open)?;
        if self.tagged {
            self.writer.close_tag();
        }
        Ok(())
    }

    /// A hand-written `Serialize` may call in any order; a key without a value must not pass for JSON.
    fn turn(&mut self, to_value: bool) -> Result {
        if self.awaits_value == to_value {
            self.awaits_value = !to_value;
            Ok(())
        } else {
            Err(CanonicalError::custom("a map's keys and values don't alternate"))
        }
    }
}

impl SerializeMap for Object<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        self.turn(false)?;
        self.writer.begin_key(&self.open);
        let plain = key.serialize(Text { writer: self.writer, sink: Writer::key_text })?;
        self.writer.end_key(&mut self.open, plain)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        self.turn(true)?;
        value.serialize(&mut *self.writer)?;
        self.writer.end_value();
        Ok(())
    }

    fn end(mut self) -> Result {
        self.turn(false)?;
        self.close()
    }
}

impl SerializeStructVariant for Object<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result {
        self.field(key, value)
    }

    fn end(self) -> Result {
        self.close()
    }
}

pub(super) enum Struct<'w> {
    Object(Object<'w>),
    RawText(&'w mut Writer),
}

impl SerializeStruct for Struct<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result {
        match self {
            Self::Object(object) => object.field(key, value),
            Self::RawText(writer) => raw_text(writer, value),
        }
    }

    fn end(self) -> Result {
        match self {
            Self::Object(object) => object.close(),
            Self::RawText(_) => Ok(()),
        }
    }
}

/// Canonicalises a value that is JSON text.
fn raw_text<T: Serialize + ?Sized>(writer: &mut Writer, value: &T) -> Result {
    value.serialize(Text { writer, sink: Writer::json_text }).map(|_plain| ())
}

impl Writer {
    /// Writes a key, and says whether it is plain.
    fn key_text(&mut self, text: &str) -> Result<bool> {
        Ok(self.string(text))
    }

    fn json_text(&mut self, text: &str) -> Result<bool> {
        canonicalize(text, self).map(|()| false)
    }
}

/// Takes only what has an obvious text: an object's keys, and raw JSON.
struct Text<'w> {
    writer: &'w mut Writer,
    sink: fn(&mut Writer, &str) -> Result<bool>,
}

type NoCompound = Impossible<bool, CanonicalError>;

impl Text<'_> {
    fn whole(self, value: impl fmt::Display) -> Result<bool> {
        self.collect_str(&value)
    }
}

fn no_key<T>(found: &'static str) -> Result<T> {
    Err(CanonicalError::Key { found })
}

impl Serializer for Text<'_> {
    type Ok = bool;
    type Error = CanonicalError;
    type SerializeSeq = NoCompound;
    type SerializeTuple = NoCompound;
    type SerializeTupleStruct = NoCompound;
    type SerializeTupleVariant = NoCompound;
    type SerializeMap = NoCompound;
    type SerializeStruct = NoCompound;
    type SerializeStructVariant = NoCompound;

    integers! {
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128)
    }

    fn serialize_str(self, text: &str) -> Result<bool> {
        (self.sink)(self.writer, text)
    }

    fn serialize_char(self, value: char) -> Result<bool> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_bool(self, value: bool) -> Result<bool> {
        self.serialize_str(if value { "true" } else { "false" })
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result<bool> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result<bool> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<bool> {
        value.serialize(self)
    }

    fn serialize_f32(self, _value: f32) -> Result<bool> {
        no_key("a float")
    }

    fn serialize_f64(self, _value: f64) -> Result<bool> {
        no_key("a float")
    }

    fn serialize_bytes(self, _bytes: &[u8]) -> Result<bool> {
        no_key("a byte string")
    }

    fn serialize_none(self) -> Result<bool> {
        no_key("null")
    }

    fn serialize_unit(self) -> Result<bool> {
        no_key("null")
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<bool> {
        no_key("null")
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _value: &T,
    ) -> Result<bool> {
        no_key("a variant with content")
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<NoCompound> {
        no_key("a sequence")
    }

    fn serialize_tuple(self, _len: usize) -> Result<NoCompound> {
        no_key("a tuple")
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<NoCompound> {
        no_key("a tuple")
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<NoCompound> {
        no_key("a variant with content")
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<NoCompound> {
        no_key("a map")
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<NoCompound> {
        no_key("a struct")
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<NoCompound> {
        no_key("a variant with content")
    }
}
