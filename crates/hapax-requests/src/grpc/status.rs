//! The refusals as gRPC puts them: a code, a sentence, and details by `google.rpc`.
//!
//! Invariant: a refusal tells a client what to do next, and nothing of the service's inside.

use crate::problem::Refusal;
use bytes::Bytes;
use std::time::Duration;
use tonic::{Code, Status};

/// Whose reasons they are.
const DOMAIN: &str = "hapax";

impl Refusal {
    pub(crate) fn grpc_code(&self) -> Code {
        match self {
            Refusal::MissingKey | Refusal::BadKey(_) | Refusal::BadName(_) | Refusal::BrokenBody => {
                Code::InvalidArgument
            }
            Refusal::NoPrincipal => Code::Unauthenticated,
            Refusal::LargeBody { .. } | Refusal::LargeAnswer { .. } => Code::ResourceExhausted,
            Refusal::OtherRequest => Code::FailedPrecondition,
            Refusal::InFlight { .. } => Code::Aborted,
            Refusal::StoreDown => Code::Unavailable,
            Refusal::Lost => Code::Internal,
        }
    }

    /// What the client is told.
    pub(crate) fn grpc_status(&self) -> Status {
        let message = format!("{}. {}", self.title(), self.detail());
        let mut details = vec![any("google.rpc.ErrorInfo", &error_info(self.word()))];
        if let Some(seconds) = self.retry_after() {
            details.push(any("google.rpc.RetryInfo", &retry_info(Duration::from_secs(seconds))));
        }
        let details = rpc_status(self.grpc_code(), &message, &details);
        Status::with_details(self.grpc_code(), message, details)
    }
}

/// `google.rpc.Status`: code, message, details.
fn rpc_status(code: Code, message: &str, details: &[Vec<u8>]) -> Bytes {
    let mut status = vec![0x08];
    varint(&mut status, code as u64);
    field(&mut status, 2, message.as_bytes());
    for detail in details {
        field(&mut status, 3, detail);
    }
    status.into()
}

/// `google.protobuf.Any`: the type, the message.
fn any(name: &str, message: &[u8]) -> Vec<u8> {
    let mut any = vec![];
    field(&mut any, 1, format!("type.googleapis.com/{name}").as_bytes());
    field(&mut any, 2, message);
    any
}

/// `google.rpc.ErrorInfo`: reason, domain. Reasons are in capitals there.
fn error_info(word: &str) -> Vec<u8> {
    let mut info = vec![];
    field(&mut info, 1, word.to_ascii_uppercase().replace('-', "_").as_bytes());
    field(&mut info, 2, DOMAIN.as_bytes());
    info
}

/// `google.rpc.RetryInfo`: a duration of whole seconds.
fn retry_info(delay: Duration) -> Vec<u8> {
    let (mut info, mut seconds) = (vec![], vec![0x08]);
    varint(&mut seconds, delay.as_secs());
    field(&mut info, 1, &seconds);
    info
}

/// Adds a field of bytes: its number and type, its length, the bytes.
fn field(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::StatusExt;

    #[test]
    fn details_are_read_by_those_who_know_them() {
        let status = Refusal::InFlight { left: Duration::from_secs(3) }.grpc_status();
        assert_eq!(status.code(), Code::Aborted);
        assert_eq!(status.message(), "The request is under way. Try again later, with the same key.");
        let details = status.get_error_details();
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(delay, Some(Duration::from_secs(3)));
        let info = details.error_info().expect("a reason");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("IN_FLIGHT", "hapax"));
        let mismatch = Refusal::OtherRequest.grpc_status().get_error_details();
        assert!(mismatch.retry_info().is_none(), "it would never help");
        // More than one byte of length.
        let long = Refusal::BadName("x".repeat(300)).grpc_status();
        assert_eq!(long.get_error_details().error_info().expect("a reason").reason, "BAD_NAME");
    }

    #[test]
    fn the_guide_has_the_code_of_each_refusal() {
        let guide = include_str!("../../../../docs/guide/requests.md");
        let (left, limit) = (Duration::ZERO, 0);
        for refusal in [
            Refusal::MissingKey,
            Refusal::BadKey(""),
            Refusal::NoPrincipal,
            Refusal::BadName(String::new()),
            Refusal::BrokenBody,
            Refusal::LargeBody { limit },
            Refusal::OtherRequest,
            Refusal::InFlight { left },
            Refusal::StoreDown,
            Refusal::LargeAnswer { limit },
            Refusal::Lost,
        ] {
            let row = format!("(#{})", refusal.word());
            let row = guide.lines().find(|line| line.starts_with('|') && line.contains(&row)).expect("a row");
            assert!(row.contains(&format!("`{:?}`", refusal.grpc_code())), "{row}");
        }
    }
}
