//! Serde's data model, in the shapes of `serde_json`, onto the canonical [`Writer`].
//!
//! Invariant: a value's bytes are those of its `serde_json` text, canonicalised, but without the detour.

use std::fmt;

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::CanonicalError;
use super::text::{key_text, raw_text};
use super::writer::{OpenArray, OpenObject, Writer};

type Result<T = ()> = std::result::Result<T, CanonicalError>;

/// How `serde_json` marks a struct whose only field is JSON text: its `RawValue`, and its `Number` in a build where
/// someone turned on `arbitrary_precision`.
const RAW_TEXT: [&str; 2] = ["$serde_json::private::RawValue", "$serde_json::private::Number"];

/// One method per integer type, all of them alike.
macro_rules! integers {
    ($through:ident: $($method:ident($type:ty))*) => {$(
        fn $method(self, value: $type) -> Result<Self::Ok> {
            self.$through(value.into())
        }
    )*};
}

pub(super) use integers;

impl Writer {
    fn signed(&mut self, value: i64) -> Result {
        self.integer(value < 0, value.unsigned_abs());
        Ok(())
    }

    fn unsigned(&mut self, value: u64) -> Result {
        self.integer(false, value);
        Ok(())
    }

    /// Writes a value inside an array or object.
    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        let written = value.serialize(&mut *self);
        self.note(written)
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

    integers! { signed: serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) }
    integers! { unsigned: serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) }

    fn serialize_i128(self, value: i128) -> Result {
        self.wide_integer(value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result {
        self.wide_integer(value);
        Ok(())
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
        self.writer.nested(value)
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
        self.end_key(Ok(plain))?;
        self.writer.nested(value)?;
        self.writer.end_value();
        Ok(())
    }

    fn end_key(&mut self, plain: Result<bool>) -> Result {
        let ended = plain.and_then(|plain| self.writer.end_key(&mut self.open, plain));
        self.writer.note(ended)
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
            self.writer.note(Err(CanonicalError::custom("a map's keys and values don't alternate")))
        }
    }
}

impl SerializeMap for Object<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        self.turn(false)?;
        self.writer.begin_key(&self.open);
        let plain = key_text(self.writer, key);
        self.end_key(plain)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        self.turn(true)?;
        self.writer.nested(value)?;
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
