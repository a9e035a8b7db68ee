//! Messages as gRPC sends them: a flag, a length, the bytes.
//!
//! Invariant: what comes out is the same for every compression of the same messages, and never more than the limit, however
//! much a few bytes pretend to be.

use bytes::{BufMut, Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use std::io::{Cursor, Read};

/// The flag and the length.
const HEAD_BYTES: usize = 5;

/// What a client may compress with, as a server says it.
pub(crate) const ENCODINGS: &str = "identity,deflate,gzip,zstd";

/// Why a body isn't taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadFrames {
    /// It is no sequence of messages, or one of them is compressed in no way that was named.
    Malformed,
    /// Its messages are too large together.
    Large,
    /// It is compressed in a way that isn't known here.
    Encoding,
}

/// The messages of a body, none of them compressed.
pub(crate) fn plain(encoding: &[u8], body: Bytes, limit: usize) -> Result<Bytes, BadFrames> {
    let frames = Frames(&body).collect::<Result<Vec<_>, _>>()?;
    if frames.iter().all(|(is_compressed, _)| !is_compressed) {
        return Ok(body);
    }
    let mut out = BytesMut::new();
    for (is_compressed, message) in frames {
        let message = if is_compressed {
            let left = limit.checked_sub(out.len() + HEAD_BYTES).ok_or(BadFrames::Large)?;
            inflate(encoding, message, left)?
        } else {
            message.to_vec()
        };
        frame(&mut out, &message);
        if out.len() > limit {
            return Err(BadFrames::Large);
        }
    }
    Ok(out.freeze())
}

/// Adds a message.
pub(crate) fn frame(to: &mut BytesMut, message: &[u8]) {
    to.put_u8(0);
    // No message is let in that is larger than a body may be, which is far less.
    to.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    to.put_slice(message);
}

/// Takes a body apart.
struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    /// Whether it is compressed, and its bytes.
    type Item = Result<(bool, &'a [u8]), BadFrames>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&head, rest) = match self.0.split_first_chunk::<HEAD_BYTES>() {
            Some(split) => split,
            None if self.0.is_empty() => return None,
            None => return Some(Err(self.broken())),
        };
        let [flag @ (0 | 1), length @ ..] = head else { return Some(Err(self.broken())) };
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let Some((message, rest)) = rest.split_at_checked(length) else { return Some(Err(self.broken())) };
        self.0 = rest;
        Some(Ok((flag == 1, message)))
    }
}

impl Frames<'_> {
    /// Nothing of what follows can be read.
    fn broken(&mut self) -> BadFrames {
        self.0 = &[];
        BadFrames::Malformed
    }
}

/// A message as it was before it was compressed, of so many bytes at the most.
fn inflate(encoding: &[u8], message: &[u8], limit: usize) -> Result<Vec<u8>, BadFrames> {
    let message = Cursor::new(message);
    match encoding {
        b"gzip" => read(GzDecoder::new(message), limit),
        b"deflate" => read(ZlibDecoder::new(message), limit),
        b"zstd" => read(zstd::stream::read::Decoder::new(message).map_err(|_| BadFrames::Malformed)?, limit),
        b"" | b"identity" => Err(BadFrames::Malformed),
        _ => Err(BadFrames::Encoding),
    }
}

fn read(from: impl Read, limit: usize) -> Result<Vec<u8>, BadFrames> {
    let mut message = vec![];
    let one_more = (limit as u64).saturating_add(1);
    from.take(one_more).read_to_end(&mut message).map_err(|_| BadFrames::Malformed)?;
    if message.len() > limit { Err(BadFrames::Large) } else { Ok(message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder, write::ZlibEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    const MIB: usize = 1024 * 1024;

    fn compressed(encoding: &str, message: &[u8]) -> Bytes {
        let bytes = match encoding {
            "gzip" => {
                let mut to = GzEncoder::new(vec![], Compression::default());
                to.write_all(message).and_then(|()| to.finish())
            }
            "deflate" => {
                let mut to = ZlibEncoder::new(vec![], Compression::default());
                to.write_all(message).and_then(|()| to.finish())
            }
            _ => zstd::encode_all(message, 3),
        };
        let bytes = bytes.expect("it is in memory");
        let mut body = vec![1];
        body.extend_from_slice(&u32::try_from(bytes.len()).expect("it is small").to_be_bytes());
        body.extend_from_slice(&bytes);
        body.into()
    }

    fn uncompressed(message: &[u8]) -> Bytes {
        let mut body = BytesMut::new();
        frame(&mut body, message);
        body.freeze()
    }

    #[test]
    fn however_it_is_compressed_it_is_the_same_message() {
        let message = b"four thousand two hundred cents".repeat(50);
        let as_it_is = uncompressed(&message);
        assert_eq!(plain(b"", as_it_is.clone(), MIB), Ok(as_it_is.clone()));
        assert_eq!(plain(b"gzip", as_it_is.clone(), MIB), Ok(as_it_is.clone()), "named, and not done");
        for encoding in ["gzip", "deflate", "zstd"] {
            let body = compressed(encoding, &message);
            assert_eq!(plain(encoding.as_bytes(), body.clone(), MIB), Ok(as_it_is.clone()), "{encoding}");
            let both = [body.clone(), as_it_is.clone(), body].concat();
            assert_eq!(plain(encoding.as_bytes(), both.into(), MIB), Ok(as_it_is.repeat(3).into()));
        }
    }

    #[test]
    fn a_few_bytes_that_would_be_many_are_refused() {
        for encoding in ["gzip", "deflate", "zstd"] {
            let bomb = compressed(encoding, &vec![0; 64 * MIB]);
            assert!(bomb.len() < MIB);
            assert_eq!(plain(encoding.as_bytes(), bomb, MIB), Err(BadFrames::Large), "{encoding}");
            let twice = compressed(encoding, &vec![0; MIB * 2 / 3]).repeat(2);
            assert_eq!(plain(encoding.as_bytes(), twice.into(), MIB), Err(BadFrames::Large), "{encoding}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let broken: [&[u8]; 5] =
            [&[0], &[0, 0, 0, 0], &[0, 0, 0, 0, 2, 7], &[2, 0, 0, 0, 0], &[0, 0, 0, 0, 1, 7, 0]];
        for body in broken {
            assert_eq!(plain(b"", Bytes::copy_from_slice(body), MIB), Err(BadFrames::Malformed), "{body:?}");
        }
        let body = compressed("gzip", b"a message");
        assert_eq!(plain(b"", body.clone(), MIB), Err(BadFrames::Malformed), "compressed, and not said how");
        assert_eq!(plain(b"snappy", body.clone(), MIB), Err(BadFrames::Encoding));
        assert_eq!(plain(b"zstd", body, MIB), Err(BadFrames::Malformed), "it is something else");
        assert_eq!(plain(b"", Bytes::new(), MIB), Ok(Bytes::new()));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(body in prop::collection::vec(any::<u8>(), 0..200)) {
            for encoding in ["", "gzip", "deflate", "zstd"] {
                let _ = plain(encoding.as_bytes(), body.clone().into(), 1000);
            }
        }
    }
}
