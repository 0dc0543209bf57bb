//! The properties of the codec of the PROXY protocol on what is worth keeping, and on what comes of it by chance.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use sluicegate_proxy_protocol as proxy_protocol;
use sluicegate_proxy_protocol::{Endpoints, HeaderRead, Outgoing, Version, read, write};

mod properties;

fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy_protocol/corpus");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn the_corpus_holds() {
    let corpus = corpus();
    assert!(corpus.len() >= 10);
    for input in &corpus {
        properties::header(input);
    }
}

#[test]
fn each_byte_at_each_place_of_the_corpus_is_read_as_the_naive_reader_reads_it() {
    for input in corpus() {
        for at in 0..input.len() {
            // The rest is read as one of these is.
            for byte in b"\0\x01\x02\x03\x05\x07\x11\x12\x20\x21\x22\x30\x31\x32\x7f\x80\xff\r\n .:019afFgPTUx+-" {
                let mut input = input.clone();
                input[at] = *byte;
                properties::header(&input);
            }
        }
    }
}

fn ip() -> impl Strategy<Value = IpAddr> {
    // Few bits, so that runs of zeros and IPv4 in the dress of IPv6 are met.
    let short = any::<[bool; 8]>().prop_map(|bits| IpAddr::from(bits.map(|bit| u16::from(bit) * 0xabc)));
    let mapped = any::<[u8; 4]>().prop_map(|octets| IpAddr::from(std::net::Ipv4Addr::from(octets).to_ipv6_mapped()));
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from), short, mapped]
}

fn endpoints() -> impl Strategy<Value = Option<Endpoints>> {
    let both = (ip(), any::<u16>(), ip(), any::<u16>());
    proptest::option::of(both.prop_map(|(source, source_port, destination, destination_port)| Endpoints {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    }))
}

fn canonical(endpoints: Endpoints) -> Endpoints {
    let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    Endpoints { source: canonical(endpoints.source), destination: canonical(endpoints.destination) }
}

/// A value of which there may be too much.
fn bytes(most: usize) -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        proptest::collection::vec(any::<u8>(), most - 2..most + 3)
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn what_is_like_the_corpus_holds(
        of: Index, changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..8), mended: bool,
    ) {
        let corpus = corpus();
        let mut input = of.get(&corpus).clone();
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        if mended {
            input[0] |= 2;
        }
        properties::header(&input);
    }

    #[test]
    fn whatever_comes_holds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        properties::header(&bytes);
        let head = [b"\x03\x21\x21\0\x60".as_slice(), &bytes].concat();
        properties::header(&head);
    }

    #[test]
    fn a_line_of_its_alphabet_is_read_as_the_naive_reader_reads_it(
        family in prop::sample::select(&["TCP4 ", "TCP6 ", "UNKNOWN"][..]),
        rest in proptest::collection::vec(
            prop::sample::select(&["0", "1", "25", "255", "256", "01", "f", "ffff", ".", ".", ":", ":", "::", " ", " ", "1.2.3.4 ", "::1 ", "80 ", "443\r\n", "\r", "\n"][..]), 0..16),
    ) {
        properties::header(format!("\0PROXY {family}{}", rest.concat()).as_bytes());
    }

    #[test]
    fn what_is_written_is_read(
        is_text: bool, endpoints in endpoints(), alpn in bytes(255), unique_id in bytes(128),
        authority in proptest::option::of(prop_oneof!["[a-zA-Z0-9._~:\\[\\]-]{0,40}", "[a-z.]{253,257}", "\\PC{1,9}"]),
    ) {
        let version = if is_text { Version::V1 } else { Version::V2 };
        let outgoing = Outgoing { alpn: alpn.as_deref(), authority: authority.as_deref(), unique_id: unique_id.as_deref() };
        let mut out = Vec::new();
        write(version, endpoints, &outgoing, &mut out);
        let most = if is_text { 107 } else { 706 };
        prop_assert!(out.len() <= most);
        let Ok(HeaderRead::Complete { header, length }) = read(&out) else { panic!("{out:?}: {:?}", read(&out)) };
        prop_assert_eq!((length, header.version), (out.len(), version));
        prop_assert_eq!(header.endpoints, endpoints.map(canonical));
        let has_vectors = !is_text && endpoints.is_some();
        let said = |value: Option<Vec<u8>>, most| value.filter(|value| has_vectors && (1..=most).contains(&value.len()));
        let is_host = |host: &String| host.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:[]".contains(c));
        prop_assert_eq!(header.alpn().map(<[u8]>::to_vec), said(alpn, 255));
        prop_assert_eq!(header.unique_id().map(<[u8]>::to_vec), said(unique_id, 128));
        let host = authority.filter(is_host).map(String::into_bytes);
        prop_assert_eq!(header.authority().map(|host| host.as_bytes().to_vec()), said(host, 255));
        properties::header(&[&[0], out.as_slice()].concat());
    }
}
