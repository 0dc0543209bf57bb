//! Calls of gRPC to a gateway, and their messages by the wire format of protobuf alone.

use bytes::Bytes;

use crate::h2::peer::{self, Whole};

/// A field whose value has a length.
pub fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(value);
    bytes
}

/// A message with what goes before it.
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}

/// Calls a method.
pub async fn call_at(sender: &peer::Sender, path: &str, body: Vec<u8>) -> Whole {
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    peer::post(sender, peer::request("POST", path, &fields), Bytes::from(body), None).await.unwrap()
}

/// The fields of a message: numbers, and values of those that have a length, or numbers as bytes.
pub fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let tag = number(&mut message);
        let value = match tag & 7 {
            0 => number(&mut message).to_string().into_bytes(),
            2 => {
                let length = number(&mut message) as usize;
                let (value, rest) = message.split_at(length);
                message = rest;
                value.to_vec()
            }
            other => panic!("wire type {other}"),
        };
        all.push((tag >> 3, value));
    }
    all
}

/// The first field of this number.
pub fn sole(message: &[u8], wanted: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|(number, _)| *number == wanted).map(|(_, value)| value)
}

/// The message of an answer, which has one.
pub fn message_of(answer: &Whole) -> &[u8] {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/grpc")), "{answer:?}");
    assert_eq!(answer.trailers.as_ref().and_then(|trailers| trailers.get("grpc-status")).unwrap(), "0");
    let (prefix, message) = answer.body.split_at(5);
    assert_eq!(prefix, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
    message
}
