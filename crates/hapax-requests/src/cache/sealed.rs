//! A finished record as bytes that only holders of the secret can make.
//!
//! Invariant: what opens was sealed by one of us, byte for byte. Whether it answers a claim is asked apart, in
//! [`Sealer::open`]: whose it is, what it was asked for, how it ended and until when it counts.

use hapax_core::{
    canary,
    id::Namespace,
    json::Json,
    key::Digest,
    request::{Completion, Outcome, Record, RecoveryPoint, RequestHash, RequestId, Status, Token},
};
use hapax_store::requests::Claim;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Says of bytes that they are a record, and in which form. Another form gets another number: what is there in the old one
/// is then a miss.
const MAGIC: &[u8] = b"hapax.rq\x01";

const TAG_BYTES: usize = 32;

/// Why bytes are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Nobody who has the secret made them, or they were altered.
    Forged,
    /// A record, but none that answers this claim now.
    Other,
}

/// Makes records into bytes and back, under a secret.
pub(crate) struct Sealer {
    mac: Hmac<Sha256>,
}

impl Sealer {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self { mac: Hmac::new_from_slice(&secret).expect("a key of any length is one") }
    }

    /// The bytes of a record that is finished for good; `None`: it isn't.
    pub(crate) fn seal(&self, record: &Record) -> Option<Vec<u8>> {
        let completion = record.completion.as_ref().filter(|_| is_final(record))?;
        let body = encode(record, completion);
        let tag = self.tag(&body).finalize().into_bytes();
        Some([MAGIC, tag.as_slice(), &body].concat())
    }

    /// The record in the bytes, if it answers a claim at this time.
    pub(crate) fn open(&self, bytes: &[u8], claim: &Claim, now_us: i64) -> Result<Record, Unfit> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(Unfit::Forged)?;
        let (tag, body) = rest.split_at_checked(TAG_BYTES).ok_or(Unfit::Forged)?;
        if self.tag(body).verify_slice(tag).is_err() && !canary::on("cache_unsealed") {
            return Err(Unfit::Forged);
        }
        let record = decode(body).ok_or(Unfit::Forged)?;
        let is_named = record.id == claim.id || canary::on("cache_any_name");
        let is_asked = record.hash == claim.hash || canary::on("cache_any_hash");
        let is_there = record.expires_at_us > now_us || canary::on("cache_expired");
        if is_named && is_asked && is_there && is_final(&record) { Ok(record) } else { Err(Unfit::Other) }
    }

    fn tag(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(MAGIC);
        mac.update(body);
        mac
    }
}

fn is_final(record: &Record) -> bool {
    matches!(record.status(), Status::Succeeded | Status::FailedFinal)
}

fn encode(record: &Record, completion: &Completion) -> Vec<u8> {
    let mut to = Writer(Vec::with_capacity(completion.weight() + 512));
    to.text(record.id.namespace().as_str());
    to.text(record.id.principal()).text(record.id.method()).text(record.id.key());
    to.fixed(&record.hash.0.0);
    to.fixed(&record.token.sequence.to_be_bytes());
    to.fixed(&record.token.nonce.to_be_bytes());
    to.fixed(&record.token.updated_at_us.to_be_bytes());
    to.fixed(&record.attempt.to_be_bytes());
    to.fixed(&record.lease_until_us.to_be_bytes());
    to.fixed(&record.origin.to_be_bytes());
    to.fixed(&record.created_at_us.to_be_bytes());
    to.fixed(&record.expires_at_us.to_be_bytes());
    match &record.point {
        Some(point) => to.fixed(&[1]).text(&point.name).text(point.data.as_str()),
        None => to.fixed(&[0]),
    };
    to.fixed(&[u8::from(completion.status == Outcome::Succeeded)]);
    to.fixed(&completion.response_code.to_be_bytes());
    to.count(completion.response_headers.len());
    for (name, value) in &completion.response_headers {
        to.text(name).bytes(value);
    }
    to.bytes(&completion.response_payload);
    match &completion.error_message {
        Some(message) => to.fixed(&[1]).text(message),
        None => to.fixed(&[0]),
    };
    to.0
}

/// `None`: it is no record, or something follows it.
fn decode(body: &[u8]) -> Option<Record> {
    let mut from = Reader(body);
    let namespace = Namespace::new(from.text()?).ok()?;
    let id = RequestId::new(namespace, from.text()?, from.text()?, from.text()?).ok()?;
    let hash = RequestHash(Digest(from.fixed()?));
    let sequence = i64::from_be_bytes(from.fixed()?);
    let nonce = u128::from_be_bytes(from.fixed()?);
    let token = Token { sequence, nonce, updated_at_us: i64::from_be_bytes(from.fixed()?) };
    let record = Record {
        id,
        hash,
        token,
        attempt: u32::from_be_bytes(from.fixed()?),
        lease_until_us: i64::from_be_bytes(from.fixed()?),
        origin: u128::from_be_bytes(from.fixed()?),
        created_at_us: i64::from_be_bytes(from.fixed()?),
        expires_at_us: i64::from_be_bytes(from.fixed()?),
        point: from.point()?,
        completion: Some(from.completion()?),
    };
    from.0.is_empty().then_some(record)
}

struct Writer(Vec<u8>);

impl Writer {
    fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.fixed(&(count as u64).to_be_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).fixed(bytes)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn count(&mut self) -> Option<usize> {
        u64::from_be_bytes(self.fixed()?).try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.count()?;
        self.take(count)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    fn is_there(&mut self) -> Option<bool> {
        match self.fixed()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    /// `None`: broken off; `Some(None)`: there is no point.
    fn point(&mut self) -> Option<Option<RecoveryPoint>> {
        if !self.is_there()? {
            return Some(None);
        }
        let (name, data) = (self.text()?, Json::from_text(self.text()?).ok()?);
        Some(Some(RecoveryPoint::new(name, data).ok()?))
    }

    fn completion(&mut self) -> Option<Completion> {
        let status = if self.is_there()? { Outcome::Succeeded } else { Outcome::FailedFinal };
        let response_code = i32::from_be_bytes(self.fixed()?);
        // Not by the count, which may be anything until all of it was read.
        let mut response_headers = vec![];
        for _ in 0..self.count()? {
            response_headers.push((self.text()?.to_owned(), self.bytes()?.to_vec()));
        }
        let response_payload = self.bytes()?.to_vec();
        let error_message = if self.is_there()? { Some(self.text()?.to_owned()) } else { None };
        Some(Completion { status, response_code, response_headers, response_payload, error_message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::key::sha256;
    use proptest::prelude::*;

    fn record() -> Record {
        let id = RequestId::new(Namespace::default(), "merchant-7", "POST /charges", "k").expect("a name");
        Record {
            id,
            hash: RequestHash(sha256(b"4200")),
            token: Token { sequence: 7, nonce: u128::MAX - 1, updated_at_us: 11 },
            attempt: 3,
            lease_until_us: -1,
            point: Some(RecoveryPoint::new("charged", Json::of(&[1, 2]).expect("JSON")).expect("a name")),
            origin: 5,
            completion: Some(Completion {
                response_headers: vec![("x".into(), vec![0, 255]), ("x".into(), vec![])],
                ..Completion::failed_final(402, [0, 1, 254], "no cover")
            }),
            created_at_us: 10,
            expires_at_us: 1000,
        }
    }

    fn sealer() -> Sealer {
        Sealer::new([7; 32])
    }

    fn claim() -> Claim {
        Claim::new(record().id, record().hash)
    }

    #[test]
    fn a_record_comes_back_whole() {
        for record in
            [record(), Record { point: None, completion: Some(Completion::succeeded(200, [])), ..record() }]
        {
            let sealed = sealer().seal(&record).expect("it is finished");
            assert_eq!(sealer().open(&sealed, &claim(), 999), Ok(record));
        }
    }

    #[test]
    fn what_is_not_finished_for_good_is_not_sealed() {
        let retryable = Some(Completion::failed_retryable(503, "the bank is closed"));
        for completion in [None, retryable] {
            assert_eq!(sealer().seal(&Record { completion, ..record() }), None);
        }
    }

    #[test]
    fn only_the_very_request_is_answered_and_only_in_time() {
        let sealed = sealer().seal(&record()).expect("it is finished");
        let id = RequestId::new(Namespace::default(), "merchant-8", "POST /charges", "k").expect("a name");
        let others = [
            (Claim { id, ..claim() }, 0),
            (Claim { hash: RequestHash(sha256(b"4300")), ..claim() }, 0),
            (claim(), 1000),
        ];
        for (claim, now) in others {
            assert_eq!(sealer().open(&sealed, &claim, now), Err(Unfit::Other), "{claim:?}");
        }
        assert_eq!(Sealer::new([8; 32]).open(&sealed, &claim(), 0), Err(Unfit::Forged), "another's secret");
    }

    #[test]
    fn every_byte_counts() {
        let sealed = sealer().seal(&record()).expect("it is finished");
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert_eq!(sealer().open(&altered, &claim(), 0), Err(Unfit::Forged), "byte {at}");
            assert_eq!(sealer().open(&sealed[..at], &claim(), 0), Err(Unfit::Forged), "{at} bytes");
        }
        let longer = [sealed.as_slice(), &[0]].concat();
        assert_eq!(sealer().open(&longer, &claim(), 0), Err(Unfit::Forged));
    }

    proptest! {
        /// Nothing but the seal is between these bytes and the parser.
        #[test]
        fn no_bytes_break_the_parser(body in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..400) {
            let _ = decode(&body);
            let mut real = encode(&record(), &record().completion.expect("finished"));
            real.truncate(cut);
            let _ = decode(&[real.as_slice(), &body].concat());
            let _ = sealer().open(&body, &claim(), 0);
        }
    }
}
