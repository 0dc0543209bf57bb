//! Reports, word for word: what somebody reads whose file is wrong.

use std::path::Path;

use super::{Certificates, parse};

fn errors(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread).map(|parsed| parsed.model).unwrap_err().to_string()
}

fn warnings(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .warnings
        .to_string()
}

#[test]
fn a_text_without_quotes() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[log]
level = debug

[[limit]]
name = "a"
rate = 100/s
"#;
    let report = r"
error: the value must be quoted
 --> gateway.toml:9:9
  |
9 | level = *****
  |         ^^^^^
  |
  = help: put double quotes around it

error: the value must be quoted
  --> gateway.toml:13:8
   |
13 | rate = *****
   |        ^^^^^
   |
   = help: put double quotes around it

gateway.toml: 2 errors";
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn broken_syntax_hides_no_other_mistake() {
    let text = r#"[[listener]
address = "127.0.0.1:8080"

[server]
timeout =
workers = "many"

[[route]]
name = "all"
limits = ["a", "b"
"#;
    let report = r#"
error: this is no TOML: unclosed array table
 --> gateway.toml:1:12
  |
1 | [[listener]
  |            ^
  |
  = help: expected `]`

error: a value is missing after the equals sign
 --> gateway.toml:5:10
  |
5 | timeout =
  |          ^
  |
  = help: write it, or remove the line

error: `workers` takes a whole number, not a string
 --> gateway.toml:6:11
  |
6 | workers = ******
  |           ^^^^^^
  |
  = help: write it as a number from 1 to 1024; or "auto"

error: this is no TOML: unclosed array
  --> gateway.toml:10:19
   |
10 | limits = *********
   |                   ^
   |
   = help: expected `]`

gateway.toml: 4 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn an_unknown_key() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"
backlog = 100

[[route]]
name = "all"
respnd = { body = "x" }
"#;
    let report = r#"
error: unknown key `backlog` in [[listener]]
 --> gateway.toml:3:1
  |
3 | backlog = 100
  | ^^^^^^^
  |
  = help: keys of [[listener]]: address, max_connections, protocol, proxy_protocol, proxy_protocol_from, redirect_to_https, reject_unknown_sni, tls

error: unknown key `respnd` in [[route]]
 --> gateway.toml:7:1
  |
7 | respnd = { body = "x" }
  | ^^^^^^
  |
  = help: did you mean `respond`?

gateway.toml: 2 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn an_unknown_section_and_a_key_before_the_first() {
    let text = r#"workers = 2

[routes]
name = "all"

[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
"#;
    let report = r"
error: the key `workers` stands before the first section
 --> gateway.toml:1:1
  |
1 | workers = 2
  | ^^^^^^^
  |
  = help: move it below the header of its section, such as [server]

error: unknown section `routes`
 --> gateway.toml:3:2
  |
3 | [routes]
  |  ^^^^^^
  |
  = help: did you mean `route`?

gateway.toml: 2 errors";
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_section_with_the_wrong_brackets() {
    let text = r#"[[server]]
workers = 0

[listener]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
"#;
    let report = r#"
error: `server` is one section, not a list
 --> gateway.toml:1:1
  |
1 | [[server]]
  | ^^^^^^^^^^
  |
  = help: write it once, as [server]

error: `workers` is out of range: `0`
 --> gateway.toml:2:11
  |
2 | workers = 0
  |           ^
  |
  = help: it goes from 1 to 1024; or "auto"

error: `listener` is a list of sections
 --> gateway.toml:4:1
  |
4 | [listener]
  | ^^^^^^^^^^
  |
  = help: write its header as [[listener]]

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_value_of_the_wrong_type() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = "per-client"
timeout = 30
allow_encoded_slash = "yes"
"#;
    let report = r#"
error: `limits` takes an array, not a string
 --> gateway.toml:7:10
  |
7 | limits = "per-client"
  |          ^^^^^^^^^^^^
  |
  = help: write it as ["per-client"]

error: `timeout` takes a duration in quotes, not an integer
 --> gateway.toml:8:11
  |
8 | timeout = 30
  |           ^^
  |
  = help: write it as "250ms", "5s" or "1m"; or "none"

error: `allow_encoded_slash` takes a boolean, not a string
 --> gateway.toml:9:23
  |
9 | allow_encoded_slash = "yes"
  |                       ^^^^^
  |
  = help: write it as true or false

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn numbers_and_times_out_of_range() {
    let text = r#"[server]
workers = 5000
timeout = "0s"
shutdown_grace = "5 s"

[dead_letter]
rotate_size = "1KiB"
max_total_size = "4 gigs"
fsync = "interval:1h30m"

[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
"#;
    let report = r#"
error: `workers` is out of range: `5000`
 --> gateway.toml:2:11
  |
2 | workers = 5000
  |           ^^^^
  |
  = help: it goes from 1 to 1024; or "auto"

error: `timeout` is out of range: "0s"
 --> gateway.toml:3:11
  |
3 | timeout = "0s"
  |           ^^^^
  |
  = help: it goes from 1ms to 1d; or "none"

error: `shutdown_grace`: invalid duration "5 s"
 --> gateway.toml:4:18
  |
4 | shutdown_grace = "5 s"
  |                  ^^^^^
  |
  = help: " s" is no unit of time: use ns, us, ms, s, m, h or d

error: `rotate_size` is out of range: "1KiB"
 --> gateway.toml:7:15
  |
7 | rotate_size = "1KiB"
  |               ^^^^^^
  |
  = help: it goes from 64KiB to 1024GiB

error: `max_total_size`: invalid size "4 gigs"
 --> gateway.toml:8:18
  |
8 | max_total_size = "4 gigs"
  |                  ^^^^^^^^
  |
  = help: a size is a whole number and one of B KiB MiB GiB KB MB GB, like "64KiB"

error: invalid `fsync` interval "1h30m"
 --> gateway.toml:9:9
  |
9 | fsync = "interval:1h30m"
  |         ^^^^^^^^^^^^^^^^
  |
  = help: write "interval:1s"; it goes from 10ms to 1h

gateway.toml: 6 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn timeouts_and_sizes_of_http_that_are_none() {
    let text = r#"[server]
head_timeout = "50ms"
keep_alive_timeout = 75
body_timeout = "none"
tunnel_timeout = "0s"
max_head_size = "2MiB"
max_head_fields = 1000
max_body_size = "unlimited"
head_time_out = "1s"

[[listener]]
address = "127.0.0.1:8080"

[[upstream]]
name = "app"
servers = ["echo:a"]
connect_timeout = "5m"

[[route]]
name = "all"
upstream = "app"
max_body_size = false
"#;
    let report = r#"
error: `head_timeout` is out of range: "50ms"
 --> gateway.toml:2:16
  |
2 | head_timeout = "50ms"
  |                ^^^^^^
  |
  = help: it goes from 100ms to 1d

error: `keep_alive_timeout` takes a duration in quotes, not an integer
 --> gateway.toml:3:22
  |
3 | keep_alive_timeout = 75
  |                      ^^
  |
  = help: write it as "250ms", "5s" or "1m"

error: `body_timeout`: invalid duration "none"
 --> gateway.toml:4:16
  |
4 | body_timeout = "none"
  |                ^^^^^^
  |
  = help: a duration is a whole number and a unit, like "250ms", "5s" or "1m"

error: `tunnel_timeout` is out of range: "0s"
 --> gateway.toml:5:18
  |
5 | tunnel_timeout = "0s"
  |                  ^^^^
  |
  = help: it goes from 100ms to 1d; or "none"

error: `max_head_size` is out of range: "2MiB"
 --> gateway.toml:6:17
  |
6 | max_head_size = "2MiB"
  |                 ^^^^^^
  |
  = help: it goes from 4KiB to 1MiB

error: `max_head_fields` is out of range: `1000`
 --> gateway.toml:7:19
  |
7 | max_head_fields = 1000
  |                   ^^^^
  |
  = help: it goes from 1 to 256

error: `max_body_size`: invalid size "unlimited"
 --> gateway.toml:8:17
  |
8 | max_body_size = "unlimited"
  |                 ^^^^^^^^^^^
  |
  = help: a size is a whole number and one of B KiB MiB GiB KB MB GB, like "64KiB"; or "none"

error: unknown key `head_time_out` in [server]
 --> gateway.toml:9:1
  |
9 | head_time_out = "1s"
  | ^^^^^^^^^^^^^
  |
  = help: did you mean `head_timeout`?

error: `connect_timeout` is out of range: "5m"
  --> gateway.toml:17:19
   |
17 | connect_timeout = "5m"
   |                   ^^^^
   |
   = help: it goes from 100ms to 1m

error: `max_body_size` takes a size in quotes, not a boolean
  --> gateway.toml:22:17
   |
22 | max_body_size = false
   |                 ^^^^^
   |
   = help: write it as "64KiB", "10MB" or a plain number of bytes; or "none"

gateway.toml: 10 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_word_that_is_none_of_the_choices() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[[upstream]]
name = "app"
servers = ["echo:a"]
balance = "round_robbin"

[log]
access = "yes"
level = "inof"
"#;
    let report = r#"
error: `balance` cannot be "round_robbin"
  --> gateway.toml:11:11
   |
11 | balance = "round_robbin"
   |           ^^^^^^^^^^^^^^
   |
   = help: did you mean "round-robin"?

error: `access` cannot be "yes"
  --> gateway.toml:14:10
   |
14 | access = "yes"
   |          ^^^^^
   |
   = help: use one of "off", "json", "combined"

error: `level` cannot be "inof"
  --> gateway.toml:15:9
   |
15 | level = "inof"
   |         ^^^^^^
   |
   = help: did you mean "info"?

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn what_later_versions_have() {
    let text = r#"[[listener]]
address = "127.0.0.1:8443"

[[limit]]
name = "a"
rate = "100/s"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a"]
on_limit = "defer"
"#;
    let report = r#"
error: `on_limit` = "defer" needs a place for what is deferred
  --> gateway.toml:12:12
   |
12 | on_limit = "defer"
   |            ^^^^^^^
   |
   = help: add the section [dead_letter]: deferred requests are kept in its directory

gateway.toml: 1 error"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_name_given_twice() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[[limit]]
name = "a"
rate = "100/s"

[[limit]]
name = "a"
rate = "200/s"
"#;
    let report = r#"
error: the limit "a" is defined twice
  --> gateway.toml:13:8
   |
13 | name = "a"
   |        ^^^
   |
   = note: the first is at gateway.toml:9:8
   = help: give each its own name

gateway.toml: 1 error"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_name_that_nothing_has() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[limit]]
name = "per-client"
rate = "100/s"

[[route]]
name = "all"
limits = ["per-cleint", "other"]
upstream = "app"
"#;
    let report = r#"
error: there is no limit "per-cleint"
  --> gateway.toml:10:11
   |
10 | limits = ["per-cleint", "other"]
   |           ^^^^^^^^^^^^
   |
   = help: did you mean "per-client"?

error: there is no limit "other"
  --> gateway.toml:10:25
   |
10 | limits = ["per-cleint", "other"]
   |                         ^^^^^^^
   |
   = help: add a [[limit]] of this name; limits of the file: per-client

error: there is no upstream "app"
  --> gateway.toml:11:12
   |
11 | upstream = "app"
   |            ^^^^^
   |
   = help: the file has no [[upstream]]: add one of this name

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn slots_that_do_not_divide() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a"]

[[limit]]
name = "a"
rate = ["100/s", "9/250ms"]
slots = 3
"#;
    let report = r"
error: 3 slots do not divide the window of 100/s
  --> gateway.toml:12:9
   |
12 | slots = 3
   |         ^
   |
   = help: use slots = 2, the nearest that does (equal slots of at least 1ms)

gateway.toml: 1 error";
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn rates_that_are_none() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a"]

[[limit]]
name = "a"
rate = ["0/s", "100", "5/5 s", 100]
"#;
    let report = r#"
error: invalid rate "0/s"
  --> gateway.toml:11:9
   |
11 | rate = ["0/s", "100", "5/5 s", 100]
   |         ^^^^^
   |
   = help: a rate of 0 would admit nobody: give at least 1, or refuse in the route

error: invalid rate "100"
  --> gateway.toml:11:16
   |
11 | rate = ["0/s", "100", "5/5 s", 100]
   |                ^^^^^
   |
   = help: a rate is a whole number, a slash and a time, like "100/s" or "20/100ms"

error: invalid rate "5/5 s"
  --> gateway.toml:11:23
   |
11 | rate = ["0/s", "100", "5/5 s", 100]
   |                       ^^^^^^^
   |
   = help: the part after the slash is no duration: " s" is no unit of time: use ns, us, ms, s, m, h or d

error: `rate` takes a rate in quotes, not an integer
  --> gateway.toml:11:32
   |
11 | rate = ["0/s", "100", "5/5 s", 100]
   |                                ^^^
   |
   = help: write it as "100/s" or ["100/s", "20/100ms"]

gateway.toml: 4 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_cost_that_never_fits() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a", "b"]
cost = 50

[[limit]]
name = "a"
rate = ["100/s", "20/100ms"]

[[limit]]
name = "b"
rate = "10/s"
cost = 11
"#;
    let report = r#"
error: a cost of 50 never fits into the rate 20/100ms of the limit "a": every request would be refused
 --> gateway.toml:8:8
  |
8 | cost = 50
  |        ^^
  |
  = help: lower the cost to at most 20, or raise the rate

error: a cost of 11 never fits into the rate 10/s: every request would be refused
  --> gateway.toml:17:8
   |
17 | cost = 11
   |        ^^
   |
   = help: lower the cost to at most 10, or raise the rate

gateway.toml: 2 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_file_that_lacks_nearly_everything() {
    let text = r#"[[upstream]]
balance = "hash"

[admin]
"#;
    let report = r#"
error: [[upstream]] has no `name`
 --> gateway.toml:1:1
  |
1 | [[upstream]]
  | ^^^^^^^^^^^^
  |
  = help: add name = "app"

error: [[upstream]] has no `servers`
 --> gateway.toml:1:1
  |
1 | [[upstream]]
  | ^^^^^^^^^^^^
  |
  = help: add servers = ["127.0.0.1:9001"]

error: [admin] has no `address`
 --> gateway.toml:4:1
  |
4 | [admin]
  | ^^^^^^^
  |
  = help: add address = "127.0.0.1:9900"

error: the file has no [[listener]]
 --> gateway.toml
  = help: add [[listener]] with address = "127.0.0.1:8080"

error: the file has no [[route]]
 --> gateway.toml
  = help: add [[route]] with name = "all" and what it does: upstream, respond or redirect

gateway.toml: 5 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_route_with_two_of_what_it_has_once() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[upstream]]
name = "app"
servers = ["echo:a"]

[[route]]
name = "all"
path = "/a"
path_exact = "/a/b"
upstream = "app"
respond = { status = 200 }
"#;
    let report = r#"
error: `path` and `path_exact` in one route
  --> gateway.toml:11:14
   |
11 | path_exact = "/a/b"
   |              ^^^^^^
   |
   = help: a route has one path: make a second route for the other

error: `upstream` and `respond` in one route
  --> gateway.toml:13:1
   |
13 | respond = { status = 200 }
   | ^^^^^^^
   |
   = note: the first is at gateway.toml:12:1
   = help: remove one: a route forwards a request, answers it, or sends the client elsewhere

gateway.toml: 2 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn conditions_that_match_nothing() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
path = "/api/*"
methods = ["get"]
headers = { "x version" = "1", X-A = "1 " }
respond = { body = "x" }
"#;
    let report = r#"
error: invalid route path "/api/*"
 --> gateway.toml:6:8
  |
6 | path = "/api/*"
  |        ^^^^^^^^
  |
  = help: "*" would stand for itself here: a prefix needs no wildcard, and path_regex takes patterns

error: "get" would match no request
 --> gateway.toml:7:12
  |
7 | methods = ["get"]
  |            ^^^^^
  |
  = help: methods are upper-case: "GET"

error: invalid header name "x version"
 --> gateway.toml:8:13
  |
8 | headers = { "x version" = "1", X-A = "1 " }
  |             ^^^^^^^^^^^
  |
  = help: a header name is made of letters, digits and !#$%&'*+-.^_`|~

error: "1 " would match no request
 --> gateway.toml:8:38
  |
8 | headers = { "x version" = "1", X-A = "1 " }
  |                                      ^^^^
  |
  = help: a value has no control characters, and no blanks at its ends

gateway.toml: 4 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn keys_that_are_none() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a", "b", "c"]

[[limit]]
name = "a"
rate = "1/s"
key = ["client_ip", "heder:x-api-key", "jwt:sub", "planet"]

[[limit]]
name = "b"
rate = "1/s"
key = ["host", "host"]

[[limit]]
name = "c"
rate = "1/s"
key = "header:x-forwarded-for"
"#;
    let report = r#"
error: unknown key source "client_ip"
  --> gateway.toml:12:8
   |
12 | key = ["client_ip", "heder:x-api-key", "jwt:sub", "planet"]
   |        ^^^^^^^^^^^
   |
   = help: did you mean "client-ip"?

error: unknown key source "heder:x-api-key"
  --> gateway.toml:12:21
   |
12 | key = ["client_ip", "heder:x-api-key", "jwt:sub", "planet"]
   |                     ^^^^^^^^^^^^^^^^^
   |
   = help: did you mean "header:"?

error: the key "jwt:sub" is not in this version
  --> gateway.toml:12:40
   |
12 | key = ["client_ip", "heder:x-api-key", "jwt:sub", "planet"]
   |                                        ^^^^^^^^^
   |
   = help: keys are client-ip, header:NAME, cookie:NAME, query:NAME, host, method, path, route, basic:user, tls:subject, tls:fingerprint and global

error: unknown key source "planet"
  --> gateway.toml:12:51
   |
12 | key = ["client_ip", "heder:x-api-key", "jwt:sub", "planet"]
   |                                                   ^^^^^^^^
   |
   = help: keys are client-ip, header:NAME, cookie:NAME, query:NAME, host, method, path, route, basic:user, tls:subject, tls:fingerprint and global

error: `key` cannot be made of these parts
  --> gateway.toml:17:7
   |
17 | key = ["host", "host"]
   |       ^^^^^^^^^^^^^^^^
   |
   = help: "host" is in the key twice: remove one

error: unknown key source "header:x-forwarded-for"
  --> gateway.toml:22:7
   |
22 | key = "header:x-forwarded-for"
   |       ^^^^^^^^^^^^^^^^^^^^^^^^
   |
   = help: "header:x-forwarded-for" is what anybody may claim: use "client-ip", which reads it from [client] trusted_proxies

gateway.toml: 6 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn regexes_that_cannot_be_used() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "a"
path_regex = '/v[0-9'
respond = { body = "x" }

[[route]]
name = "b"
path_regex = '/(x{1000}){1000}'
respond = { body = "x" }
"#;
    let report = r#"
error: invalid regular expression "/v[0-9": unclosed character class
 --> gateway.toml:6:14
  |
6 | path_regex = '/v[0-9'
  |              ^^^^^^^^
  |
  = help: see docs.rs/regex for the syntax, and quote it with '...'

error: the regex "/(x{1000}){1000}" is too large: its automaton takes more than 1 MiB
  --> gateway.toml:11:14
   |
11 | path_regex = '/(x{1000}){1000}'
   |              ^^^^^^^^^^^^^^^^^^
   |
   = help: use smaller repetitions, and in place of a `.*` before one say what may stand there, such as [^/]*

gateway.toml: 2 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn addresses_in_each_others_way() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[listener]]
address = "0.0.0.0:8080"

[[listener]]
address = "localhost:9900"

[[listener]]
address = "127.0.0.1:9901"

[admin]
address = "127.0.0.1:9901"

[[route]]
name = "all"
respond = { body = "x" }
"#;
    let report = r#"
error: the listeners 127.0.0.1:8080 and 0.0.0.0:8080 are in each other's way
 --> gateway.toml:5:11
  |
5 | address = "0.0.0.0:8080"
  |           ^^^^^^^^^^^^^^
  |
  = note: the first is at gateway.toml:2:11
  = help: give each its own port, or remove one

error: invalid listen address "localhost:9900"
 --> gateway.toml:8:11
  |
8 | address = "localhost:9900"
  |           ^^^^^^^^^^^^^^^^
  |
  = help: it takes an IP address, not a name: "127.0.0.1:9900"

error: the address 127.0.0.1:9901 is the one of [admin] too
  --> gateway.toml:11:11
   |
11 | address = "127.0.0.1:9901"
   |           ^^^^^^^^^^^^^^^^
   |
   = help: give [admin] its own port, such as 127.0.0.1:9900

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn servers_that_are_none() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[[upstream]]
name = "app"
servers = ["http://app:9001", "app", { address = "app:9002", wieght = 2 }, "app:9002"]
"#;
    let report = r#"
error: invalid server address "http://app:9001"
  --> gateway.toml:10:12
   |
10 | servers = ["http://app:9001", "app", { address = "app:9002", wieght = 2 }, "app:9002"]
   |            ^^^^^^^^^^^^^^^^^
   |
   = help: leave the scheme out: "app:9001"

error: invalid server address "app"
  --> gateway.toml:10:31
   |
10 | servers = ["http://app:9001", "app", { address = "app:9002", wieght = 2 }, "app:9002"]
   |                               ^^^^^
   |
   = help: a port is missing: "app:80"

error: unknown key `wieght` in a server
  --> gateway.toml:10:62
   |
10 | servers = ["http://app:9001", "app", { address = "app:9002", wieght = 2 }, "app:9002"]
   |                                                              ^^^^^^
   |
   = help: did you mean `weight`?

error: the server app:9002 is in the list twice
  --> gateway.toml:10:76
   |
10 | servers = ["http://app:9001", "app", { address = "app:9002", wieght = 2 }, "app:9002"]
   |                                                                            ^^^^^^^^^^
   |
   = note: the first is at gateway.toml:10:50
   = help: remove one; for a larger share use weight

gateway.toml: 4 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_key_written_twice() {
    let text = r#"[server]
workers = 1
workers = 2

[server]
timeout = "1s"

[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
"#;
    let report = r"
error: `workers` is written twice
 --> gateway.toml:3:1
  |
3 | workers = *
  | ^^^^^^^
  |
  = help: remove one of the two, or join them

error: `server` is written twice
 --> gateway.toml:5:2
  |
5 | [server]
  |  ^^^^^^
  |
  = help: remove one of the two, or join them

gateway.toml: 2 errors";
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn networks_and_origins_that_are_none() {
    let text = r#"[client]
trusted_proxies = ["10.1.2.3/8", "10.0.0.0/33"]

[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
cors = { allow_origins = ["https://App.example.com", "https://b.example/"], allow_credentials = true }
"#;
    let report = r#"
error: "10.1.2.3/8" has bits beyond its prefix
 --> gateway.toml:2:20
  |
2 | trusted_proxies = ["10.1.2.3/8", "10.0.0.0/33"]
  |                    ^^^^^^^^^^^^
  |
  = help: write "10.0.0.0/8" for the network, or "10.1.2.3" for the one address

error: invalid network "10.0.0.0/33"
 --> gateway.toml:2:34
  |
2 | trusted_proxies = ["10.1.2.3/8", "10.0.0.0/33"]
  |                                  ^^^^^^^^^^^^^
  |
  = help: write "10.0.0.0/8", "fd00::/8" or a lone address

error: invalid origin "https://App.example.com"
  --> gateway.toml:10:27
   |
10 | cors = { allow_origins = ["https://App.example.com", "https://b.example/"], allow_credentials = true }
   |                           ^^^^^^^^^^^^^^^^^^^^^^^^^
   |
   = help: write it as browsers do: scheme and host in lower case, no path, no default port, like "https://app.example.com"

error: invalid origin "https://b.example/"
  --> gateway.toml:10:54
   |
10 | cors = { allow_origins = ["https://App.example.com", "https://b.example/"], allow_credentials = true }
   |                                                      ^^^^^^^^^^^^^^^^^^^^
   |
   = help: write it as browsers do: scheme and host in lower case, no path, no default port, like "https://app.example.com"

gateway.toml: 4 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_misspelt_key_is_not_also_missing() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[[upstream]]
nmae = "app"
server = ["echo:a"]
"#;
    let report = r#"
error: unknown key `nmae` in [[upstream]]
 --> gateway.toml:9:1
  |
9 | nmae = "app"
  | ^^^^
  |
  = help: did you mean `name`?

error: unknown key `server` in [[upstream]]
  --> gateway.toml:10:1
   |
10 | server = ["echo:a"]
   | ^^^^^^
   |
   = help: did you mean `servers`?

gateway.toml: 2 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn settings_at_odds_with_each_other() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
cors = { allow_origins = ["*", "https://a.example"], allow_credentials = true }

[dead_letter]
rotate_size = "10MiB"
max_total_size = "1MiB"
"#;
    let report = r#"
error: "*" beside other origins
 --> gateway.toml:7:26
  |
7 | cors = { allow_origins = ["*", "https://a.example"], allow_credentials = true }
  |                          ^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: "*" is any origin already: write ["*"]

error: any origin with credentials
 --> gateway.toml:7:26
  |
7 | cors = { allow_origins = ["*", "https://a.example"], allow_credentials = true }
  |                          ^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: name the origins, or leave allow_credentials out: browsers refuse the two together

error: `max_total_size` (1MiB) is below `rotate_size` (10MiB): a segment could never be kept
  --> gateway.toml:11:18
   |
11 | max_total_size = "1MiB"
   |                  ^^^^^^
   |
   = help: raise max_total_size to at least "10MiB", or lower rotate_size

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn a_log_whose_key_lies_in_it_and_a_rate_that_is_none() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"
[[route]]
name = "all"
respond = {}
[dead_letter]
directory = "log"
max_byte_rate = "4MiB"
redact_secret_file = "x/../log/./redact.secret"
seal_key_file = "log/seal.key"
"#;
    let report = r#"
error: `max_byte_rate`: invalid byte rate "4MiB"
 --> gateway.toml:8:17
  |
8 | max_byte_rate = "4MiB"
  |                 ^^^^^^
  |
  = help: write a size and "/s", like "4MiB/s", from 64KiB/s to 10GiB/s

error: "x/../log/./redact.secret" is in the log's directory
 --> gateway.toml:9:22
  |
9 | redact_secret_file = "x/../log/./redact.secret"
  |                      ^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: name a file elsewhere, such as "dead-letters.secret": whoever gets a copy of the log shall not get its key

error: "log/seal.key" is in the log's directory
  --> gateway.toml:10:17
   |
10 | seal_key_file = "log/seal.key"
   |                 ^^^^^^^^^^^^^^
   |
   = help: name a file elsewhere, such as "seal.key": whoever gets a copy of the log shall not get its key

gateway.toml: 3 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn ten_mistakes_in_one_run() {
    let text = r#"[server]
workers = 0
timeout = "1 minute"

[[listener]]
address = "127.0.0.1"

[[upstream]]
name = "app"
servers = []

[[limit]]
name = "per client"
rate = "100 per second"
mode = "enforced"

[[route]]
name = "all"
methods = ["get"]
limits = ["per-clinet"]
upstream = "ap"
"#;
    let report = r#"
error: `workers` is out of range: `0`
 --> gateway.toml:2:11
  |
2 | workers = 0
  |           ^
  |
  = help: it goes from 1 to 1024; or "auto"

error: `timeout`: invalid duration "1 minute"
 --> gateway.toml:3:11
  |
3 | timeout = "1 minute"
  |           ^^^^^^^^^^
  |
  = help: " minute" is no unit of time: use ns, us, ms, s, m, h or d; or "none"

error: invalid listen address "127.0.0.1"
 --> gateway.toml:6:11
  |
6 | address = "127.0.0.1"
  |           ^^^^^^^^^^^
  |
  = help: a port is missing: "127.0.0.1:8080"

error: `servers` is empty
  --> gateway.toml:10:11
   |
10 | servers = []
   |           ^^
   |
   = help: name at least one server, like "127.0.0.1:9001" or "echo:a"

error: "per client" cannot be a name
  --> gateway.toml:13:8
   |
13 | name = "per client"
   |        ^^^^^^^^^^^^
   |
   = help: a name is 1 to 64 letters, digits, dots, dashes or underscores (A-Z a-z 0-9 . _ -)

error: invalid rate "100 per second"
  --> gateway.toml:14:8
   |
14 | rate = "100 per second"
   |        ^^^^^^^^^^^^^^^^
   |
   = help: a rate is a whole number, a slash and a time, like "100/s" or "20/100ms"

error: `mode` cannot be "enforced"
  --> gateway.toml:15:8
   |
15 | mode = "enforced"
   |        ^^^^^^^^^^
   |
   = help: did you mean "enforce"?

error: "get" would match no request
  --> gateway.toml:19:12
   |
19 | methods = ["get"]
   |            ^^^^^
   |
   = help: methods are upper-case: "GET"

error: there is no limit "per-clinet"
  --> gateway.toml:20:11
   |
20 | limits = ["per-clinet"]
   |           ^^^^^^^^^^^^
   |
   = help: did you mean "per client"?

error: there is no upstream "ap"
  --> gateway.toml:21:12
   |
21 | upstream = "ap"
   |            ^^^^
   |
   = help: did you mean "app"?

gateway.toml: 10 errors"#;
    assert_eq!(format!("\n{}", errors(text)), report);
}

#[test]
fn what_nothing_uses() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }

[[limit]]
name = "a"
rate = "100/s"

[[upstream]]
name = "app"
servers = ["echo:a"]
"#;
    let report = r#"
warning: no route uses the limit "a"
 --> gateway.toml:9:8
  |
9 | name = "a"
  |        ^^^
  |
  = help: name it in a [[route]], or remove this [[limit]]

warning: no route uses the upstream "app"
  --> gateway.toml:13:8
   |
13 | name = "app"
   |        ^^^^^
   |
   = help: name it in a [[route]], or remove this [[upstream]]

gateway.toml: 2 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn a_route_that_can_never_match() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "first"
hosts = ["a.example", "b.example"]
methods = ["GET", "PUT"]
respond = { body = "x" }

[[route]]
name = "second"
hosts = ["B.example"]
methods = ["PUT", "GET"]
respond = { body = "x" }
"#;
    let report = r#"
warning: the route "second" can never match
  --> gateway.toml:11:8
   |
11 | name = "second"
   |        ^^^^^^^^
   |
   = note: the same hosts, path, methods and headers are taken at gateway.toml:5:8
   = help: remove it, or set it apart by a host, path, method or header; the first of equal routes is taken

gateway.toml: 1 warning"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn routes_that_a_regex_leaves_nothing() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "login"
path = "/login"
methods = ["POST"]
respond = { body = "x" }

[[route]]
name = "pages"
path = "/pages"
respond = { body = "x" }

[[route]]
name = "one"
path_exact = "/login/one"
respond = { body = "x" }

[[route]]
name = "words"
path_regex = '/(login(/.*)?|pages(/[a-z]*)?)'
respond = { body = "x" }
"#;
    let report = r#"
warning: the route "login" gets none of /login, /login/, /login/x
 --> gateway.toml:5:8
  |
5 | name = "login"
  |        ^^^^^^^
  |
  = note: these match the path_regex that is tried before it, at gateway.toml:21:8
  = help: narrow that regex, or make this route a path_exact, or a path_regex above it: exact paths are tried first, then regexes in the file's order, then the longest prefix

warning: the route "pages" gets none of /pages, /pages/, /pages/x
  --> gateway.toml:11:8
   |
11 | name = "pages"
   |        ^^^^^^^
   |
   = note: these match the path_regex that is tried before it, at gateway.toml:21:8
   = help: narrow that regex, or make this route a path_exact, or a path_regex above it: exact paths are tried first, then regexes in the file's order, then the longest prefix

gateway.toml: 2 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn a_route_is_left_nothing_only_by_one_that_takes_all_it_would() {
    // The conditions of two routes, and whether the second one is left nothing.
    let cors = "cors = { allow_origins = [\"https://a.example\"] }";
    for (first, second, never) in [
        ("path_regex = '/a.*'", "path = \"/a\"", true),
        ("path = \"/a\"", "path_regex = '/a.*'", false),
        ("path_regex = '/b.*'", "path = \"/a\"", false),
        ("path_regex = '/a/.*'", "path = \"/a\"", false),
        ("path_regex = '.*'", "", true),
        ("path_regex = '/.+'", "", false),
        ("path_regex = '.*'", "path_exact = \"/a\"", false),
        ("path_exact = \"/a\"", "path_regex = '/a'", false),
        ("path_exact = \"/a\"", "path_regex = '/a|/b'", false),
        ("path_exact = \"/a\"", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\"]", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\", \"PUT\"]", "path = \"/a\"\nmethods = [\"PUT\"]", true),
        ("path_regex = '.*'\nheaders = { x = \"1\" }", "path = \"/a\"", false),
        ("path_regex = '.*'\nheaders = { x = \"1\" }", "path = \"/a\"\nheaders = { x = \"1\", y = \"1\" }", true),
        ("path_regex = '.*'\nhosts = [\"a.example\"]", "path = \"/a\"", false),
        ("path_regex = '.*'", "path = \"/a\"\nhosts = [\"a.example\"]", false),
        ("path_regex = '.*'\nhosts = [\"a.example\", \"b.example\"]", "hosts = [\"b.example\"]", true),
        ("path_regex = '.*'\nhosts = [\"a.example\"]", "hosts = [\"a.example\", \"b.example\"]", false),
        ("path_regex = '.*'\nactive = { from = \"06:00\", until = \"18:00\" }", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\"]", &format!("path = \"/a\"\nmethods = [\"GET\"]\n{cors}"), false),
        ("path_regex = '.*'", &format!("path = \"/a\"\nmethods = [\"GET\"]\n{cors}"), true),
        // Of the same path a route that names methods goes first, then the first in the file.
        ("path = \"/a\"\nmethods = [\"GET\", \"PUT\"]", "path = \"/a\"\nmethods = [\"PUT\"]", true),
        ("path = \"/a\"", "path = \"/a\"\nmethods = [\"PUT\"]", false),
        ("path = \"/a\"\nmethods = [\"GET\"]", "path = \"/a\"", false),
        // Between regexes, the file's order alone.
        ("path_regex = '/a.*'", "path_regex = '/a.*'\nmethods = [\"PUT\"]", true),
        ("path_regex = '/a.*'", "path_regex = '/ab.*'\nmethods = [\"PUT\"]", false),
        ("path_regex = '/ab.*'", "path_regex = '/a.*'", false),
    ] {
        let route =
            |name: &str, conditions: &str| format!("[[route]]\nname = \"{name}\"\nrespond = {{}}\n{conditions}\n");
        let text =
            format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n{}{}", route("first", first), route("second", second));
        let said = warnings(&text);
        assert_eq!(said.contains("the route \"second\""), never, "{first} | {second}: {said}");
    }
}

#[test]
fn settings_without_effect() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a"]

[[limit]]
name = "a"
rate = "100/s"
bound = "slot"
slots = 10
max_queue = 5
"#;
    let report = r#"
warning: `slots` has no effect: bound = "slot" always has one slot
  --> gateway.toml:13:1
   |
13 | slots = 10
   | ^^^^^
   |
   = help: remove `slots`, or the bound

warning: `max_queue` has no effect: nobody waits while `max_wait` is 0s
  --> gateway.toml:14:1
   |
14 | max_queue = 5
   | ^^^^^^^^^
   |
   = help: add max_wait = "1s", or remove max_queue

gateway.toml: 2 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn settings_of_a_limit_that_are_hardly_meant_together() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[route]]
name = "all"
respond = { body = "x" }
limits = ["a"]

[[limit]]
name = "a"
rate = ["10/s", "20/s"]
max_keys = 30000000
max_wait = "5s"
timeout = "1s"
"#;
    let report = r#"
warning: the rate 20/s never refuses anything: 10/s is stricter over every span
  --> gateway.toml:11:1
   |
11 | rate = ["10/s", "20/s"]
   | ^^^^
   |
   = help: remove "20/s", or give it a smaller count

warning: 30000000 keys of 56 bytes each may take 2.0 GiB of memory
  --> gateway.toml:12:1
   |
12 | max_keys = 30000000
   | ^^^^^^^^
   |
   = help: if that is too much, set max_keys = 14380470, or have fewer slots

warning: `timeout` = 1s ends a request before its `max_wait` = 5s does
  --> gateway.toml:14:1
   |
14 | timeout = "1s"
   | ^^^^^^^
   |
   = help: set max_wait below 1s, or a longer timeout

gateway.toml: 3 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn heads_that_have_more_time_than_the_whole() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"
[server]
timeout = "30s"
response_timeout = "31s"
[[upstream]]
name = "app"
servers = ["echo:a"]
[[route]]
name = "api"
upstream = "app"
response_timeout = "none"
[[route]]
name = "rest"
path = "/rest"
upstream = "app"
timeout = "5s"
"#;
    let report = r#"
warning: `timeout` = 30s ends a request before its `response_timeout` = 31s does
 --> gateway.toml:5:1
  |
5 | response_timeout = "31s"
  | ^^^^^^^^^^^^^^^^
  |
  = help: set response_timeout below 30s, or a longer timeout

warning: `timeout` = 30s ends a request before its `response_timeout` = none does
  --> gateway.toml:12:1
   |
12 | response_timeout = "none"
   | ^^^^^^^^^^^^^^^^
   |
   = help: set response_timeout below 30s, or a longer timeout

gateway.toml: 2 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
}

#[test]
fn waits_in_which_no_turn_comes() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[limit]]
name = "slow"
algorithm = "leaky-bucket"
rate = ["10/s", "20/m"]

[[limit]]
name = "costly"
algorithm = "leaky-bucket"
rate = "10/s"
max_wait = "499ms"
cost = 5

[[limit]]
name = "hourly"
algorithm = "leaky-bucket"
rate = "1/2h"

[[limit]]
name = "cold"
algorithm = "warm-up"
rate = "10/s"
warm_up = "10s"
max_wait = "599ms"
cost = 2

[[route]]
name = "all"
limits = ["slow", "costly", "hourly", "cold"]
respond = { status = 200 }
"#;
    let report = r#"
warning: requests leave 3s apart, and wait at most 1s: of two at once one is refused
 --> gateway.toml:7:1
  |
7 | rate = ["10/s", "20/m"]
  | ^^^^
  |
  = help: set max_wait = "3s" or more, or a faster rate

warning: requests leave 500ms apart at a cost of 5, and wait at most 499ms: of two at once one is refused
  --> gateway.toml:13:1
   |
13 | max_wait = "499ms"
   | ^^^^^^^^
   |
   = help: set max_wait = "500ms" or more, a smaller cost, or a faster rate

warning: requests leave 2h apart, and wait at most 1s: of two at once one is refused
  --> gateway.toml:19:1
   |
19 | rate = "1/2h"
   | ^^^^
   |
   = help: use a faster rate

warning: cold requests are up to 600ms apart at a cost of 2, and wait at most 599ms: of two at once one may be refused
  --> gateway.toml:26:1
   |
26 | max_wait = "599ms"
   | ^^^^^^^^
   |
   = help: set max_wait = "600ms" or more, a smaller cost, or a faster rate

gateway.toml: 4 warnings"#;
    assert_eq!(format!("\n{}", warnings(text)), report);
    // Just long enough; those that cost what they say; and where nobody shall wait.
    for (from, to) in [
        ("20/m", "60/m"),
        ("499ms", "500ms"),
        ("cost = 5", "cost = \"content-length\""),
        ("rate = \"1/2h\"", "rate = \"1/2h\"\nmode = \"off\""),
        ("599ms", "600ms"),
    ] {
        let count = |text: &str| warnings(text).matches("warning:").count();
        assert_eq!(count(&text.replace(from, to)), count(text) - 1, "{to}");
    }
}

#[test]
fn rates_that_never_refuse_anything() {
    let never = |settings: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{ body = \"x\" }}\n\
             limits = [\"a\"]\n[[limit]]\nname = \"a\"\nrate = {settings}\n"
        );
        let warnings = warnings(&text);
        let rates = warnings.lines().filter_map(|line| line.strip_prefix("warning: the rate "));
        rates.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    for (settings, useless) in [
        (r#"["10/s", "20/s"]"#, &["20/s"][..]),
        (r#"["20/s", "10/s"]"#, &["20/s"]),
        (r#"["10/s", "10/s"]"#, &["10/s"]),
        (r#"["10/m", "10/s"]"#, &["10/s"]),
        (r#"["10/s", "1000/m"]"#, &["1000/m"]),
        (r#"["10/s", "600/m"]"#, &[]),
        ("[\"10/s\", \"600/m\"]\nbound = \"slot\"", &["600/m"]),
        ("[\"10/s\", \"599/m\"]\nbound = \"slot\"", &[]),
        ("[\"10/2s\", \"10/3s\"]\nbound = \"slot\"", &[]),
        ("[\"10/s\", \"20/s\"]\nmode = \"off\"", &[]),
        (r#"["10/s", "100/m"]"#, &[]),
        (r#"["100/s", "20/100ms"]"#, &[]),
    ] {
        assert_eq!(never(settings), useless, "{settings}");
    }
}
