//! RFC 7541, Appendix C, example by example.

use super::super::{Decoder, integer};
use super::naive::Field;
use super::{field, fields, hex, table};

/// A block, its fields, and the size of the table and its entries after it.
type Example<'e> = (&'e str, &'e [(&'e str, &'e str)], usize, &'e [(&'e str, &'e str)]);

/// Decodes the blocks of one connection.
fn check(max_table: usize, blocks: &[Example<'_>]) {
    let mut decoder = Decoder::new(max_table);
    for (block, expected, size, entries) in blocks {
        let to_fields = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| field(n, v)).collect::<Vec<Field>>();
        assert_eq!(fields(&mut decoder, &hex(block)), to_fields(expected));
        let table = table(&mut decoder);
        assert_eq!(table, to_fields(entries));
        assert_eq!(table.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>(), *size);
    }
}

#[test]
fn c1_integers() {
    for (block, mask, value) in [("0a", 0x1f, 10), ("1f9a0a", 0x1f, 1337), ("2a", 0xff, 42)] {
        let block = hex(block);
        let mut at = 1;
        assert_eq!(integer::read(&block, &mut at, block[0], mask), Ok(value));
        assert_eq!(at, block.len());
        let mut out = Vec::new();
        integer::write(&mut out, 0, mask, value);
        assert_eq!(out, block);
    }
}

#[test]
fn c2_fields() {
    let custom = ("custom-key", "custom-header");
    check(4096, &[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", &[custom], 55, &[custom])]);
    check(4096, &[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], 0, &[])]);
    check(4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], 0, &[])]);
    check(4096, &[("82", &[(":method", "GET")], 0, &[])]);
}

const AUTHORITY: (&str, &str) = (":authority", "www.example.com");
const NO_CACHE: (&str, &str) = ("cache-control", "no-cache");
const CUSTOM: (&str, &str) = ("custom-key", "custom-value");

fn check_requests(blocks: [&str; 3]) {
    let get = (":method", "GET");
    let first = [get, (":scheme", "http"), (":path", "/"), AUTHORITY];
    let second = [get, (":scheme", "http"), (":path", "/"), AUTHORITY, NO_CACHE];
    let third = [get, (":scheme", "https"), (":path", "/index.html"), AUTHORITY, CUSTOM];
    check(
        4096,
        &[
            (blocks[0], &first, 57, &[AUTHORITY]),
            (blocks[1], &second, 110, &[NO_CACHE, AUTHORITY]),
            (blocks[2], &third, 164, &[CUSTOM, NO_CACHE, AUTHORITY]),
        ],
    );
}

#[test]
fn c3_requests_without_huffman() {
    check_requests([
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ]);
}

#[test]
fn c4_requests_with_huffman() {
    check_requests([
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ]);
}

fn check_responses(blocks: [&str; 3]) {
    let private = ("cache-control", "private");
    let location = ("location", "https://www.example.com");
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let later = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
    let gzip = ("content-encoding", "gzip");
    let cookie = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
    let [found, temporary, ok] = [(":status", "302"), (":status", "307"), (":status", "200")];
    check(
        256,
        &[
            (blocks[0], &[found, private, date, location], 222, &[location, date, private, found]),
            (blocks[1], &[temporary, private, date, location], 222, &[temporary, location, date, private]),
            (blocks[2], &[ok, private, later, location, gzip, cookie], 215, &[cookie, gzip, later]),
        ],
    );
}

#[test]
fn c5_responses_without_huffman() {
    check_responses([
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ]);
}

#[test]
fn c6_responses_with_huffman() {
    check_responses([
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ]);
}
