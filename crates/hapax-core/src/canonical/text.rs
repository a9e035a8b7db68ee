//! What has an obvious text: the keys of objects, and raw JSON.
//!
//! Invariant: nothing is turned into a key that `serde_json` would not turn into the same key.

use serde::ser::{Impossible, Serialize, Serializer};

use super::CanonicalError;
use super::parse::canonicalize;
use super::serialize::integers;
use super::writer::Writer;

type Result<T> = std::result::Result<T, CanonicalError>;

/// Writes a map's key, and says whether it is plain: ASCII without escapes.
pub(super) fn key_text<T: Serialize + ?Sized>(writer: &mut Writer, key: &T) -> Result<bool> {
    key.serialize(Text { writer, sink: |writer, text| Ok(writer.string(text)) })
}

/// Canonicalises a value that is JSON text.
pub(super) fn raw_text<T: Serialize + ?Sized>(writer: &mut Writer, value: &T) -> Result<()> {
    let sink = |writer: &mut Writer, text: &str| canonicalize(text, writer).map(|()| false);
    value.serialize(Text { writer, sink }).map(|_plain| ())
}

/// Takes only what has an obvious text: an object's keys, and raw JSON.
struct Text<'w> {
    writer: &'w mut Writer,
    sink: fn(&mut Writer, &str) -> Result<bool>,
}

type NoCompound = Impossible<bool, CanonicalError>;

impl Text<'_> {
    fn signed(self, value: i128) -> Result<bool> {
        self.collect_str(&value)
    }

    fn unsigned(self, value: u128) -> Result<bool> {
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

    integers! { signed: serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) }
    integers! { signed: serialize_i128(i128) }
    integers! { unsigned: serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) }
    integers! { unsigned: serialize_u128(u128) }

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
