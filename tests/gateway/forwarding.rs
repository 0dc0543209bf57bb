//! The fields that tell servers of the client, and of traces, over both protocols.

use crate::edits::BOTH;
use crate::support::{Answer, Gateway};

/// The fields of this name that the echo server got.
fn told(answer: &Answer, name: &str) -> Vec<String> {
    let echoed = answer.json();
    let pairs = echoed["headers"].as_array().unwrap();
    pairs.iter().filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
}

fn start(client: &str) -> Gateway {
    Gateway::start(&format!(
        "[client]\n{client}\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n"
    ))
}

const CLAIMS: [(&str, &str); 4] = [
    ("forwarded", "for=198.51.100.9;proto=https"),
    ("x-forwarded-for", "198.51.100.8"),
    ("x-real-ip", "198.51.100.7"),
    ("x_real_ip", "198.51.100.6"),
];

#[test]
fn the_address_goes_on_in_the_field_that_it_came_in() {
    let own = "for=127.0.0.1;host=\"h\";proto=http";
    let lists = |list: &str| [list.to_owned()];
    for (header, is_trusted, forwarded, real_ip) in [
        ("forwarded", true, &lists(&format!("for=198.51.100.9;proto=https, {own}"))[..], &lists("198.51.100.7")[..]),
        ("forwarded", false, &lists(own), &[]),
        ("x-real-ip", true, &lists("for=198.51.100.9;proto=https"), &lists("198.51.100.7")),
        ("x-real-ip", false, &[], &lists("127.0.0.1")),
        ("x-forwarded-for", false, &[], &[]),
    ] {
        let trusted = if is_trusted { "trusted_proxies = [\"127.0.0.1\"]\n" } else { "" };
        let gateway = start(&format!("{trusted}address_header = \"{header}\""));
        for protocol in BOTH {
            let answer = protocol.ask(&gateway, "GET", "/", &CLAIMS);
            let place = format!("{header} {is_trusted} {protocol:?}");
            assert_eq!(told(&answer, "forwarded"), forwarded, "{place}");
            assert_eq!(told(&answer, "x-real-ip"), real_ip, "{place}");
            let hops = if is_trusted { "198.51.100.8, 127.0.0.1" } else { "127.0.0.1" };
            assert_eq!(told(&answer, "x-forwarded-for"), [hops], "{place}");
            assert!(told(&answer, "x_real_ip").is_empty(), "{place}");
        }
    }
}

fn claim(address: &str) -> (&str, &str) {
    ("cf-connecting-ip", address)
}

#[test]
fn an_address_header_of_any_name_is_believed_from_trusted_proxies_alone() {
    let rules = |client: &str| {
        format!(
            "[client]\n{client}address_header = \"CF-Connecting-IP\"\n\
             [[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
             [[limit]]\nname = \"one\"\nrate = \"1/h\"\nexempt = [\"192.0.2.0/24\"]\n\
             [[route]]\nname = \"sees\"\nheaders = {{ cf-connecting-ip = \"203.0.113.1\" }}\n\
             respond = {{ body = \"seen\" }}\n\
             [[route]]\nname = \"limited\"\npath = \"/limited\"\nupstream = \"app\"\nlimits = [\"one\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n"
        )
    };
    let trusting = Gateway::start(&rules("trusted_proxies = [\"127.0.0.1\"]\n"));
    let alone = Gateway::start(&rules(""));
    for (protocol, last) in BOTH.into_iter().zip(1..) {
        let ask = |gateway: &Gateway, fields: &[(&str, &str)]| protocol.ask(gateway, "GET", "/limited", fields).status;
        // Each client has a count of its own, of IPv6 each /64; the networks of `exempt` have none.
        let four = format!("198.51.100.{last}");
        let six = |host| format!("2001:db8:{last}::{host}");
        assert_eq!(ask(&trusting, &[claim(&four)]), 200);
        assert_eq!(ask(&trusting, &[claim(&four)]), 429);
        assert_eq!(ask(&trusting, &[claim(&format!("{four}, 127.0.0.1"))]), 429);
        assert_eq!(ask(&trusting, &[claim(&six(1))]), 200);
        assert_eq!(ask(&trusting, &[claim(&six(2))]), 429);
        assert_eq!((0..3).map(|_| ask(&trusting, &[claim("192.0.2.7")])).collect::<Vec<_>>(), [200; 3]);
        // Of a peer that is not trusted it says nothing.
        assert_eq!(ask(&alone, &[claim(&four)]), if last == 1 { 200 } else { 429 });
        assert_eq!(ask(&alone, &[claim("192.0.2.7")]), 429);

        let claims = [claim("198.51.100.99"), ("cf_connecting_ip", "198.51.100.98")];
        let told_by = |gateway: &Gateway| {
            let answer = protocol.ask(gateway, "GET", "/", &claims);
            assert!(told(&answer, "cf_connecting_ip").is_empty(), "{protocol:?}");
            assert_eq!(told(&answer, "x-forwarded-for"), ["127.0.0.1"], "{protocol:?}");
            told(&answer, "cf-connecting-ip")
        };
        assert_eq!(told_by(&trusting), ["198.51.100.99"], "{protocol:?}");
        assert!(told_by(&alone).is_empty(), "{protocol:?}");
        let is_seen = |gateway: &Gateway| protocol.ask(gateway, "GET", "/", &[claim("203.0.113.1")]).text() == "seen";
        assert_eq!((is_seen(&trusting), is_seen(&alone)), (true, false), "{protocol:?}");
    }
    // A client that has its name nominated hides nothing.
    let nominated = [claim("198.51.100.77"), ("Connection", "cf-connecting-ip")];
    assert_eq!(BOTH[0].ask(&trusting, "GET", "/limited", &nominated).status, 200);
    assert_eq!(BOTH[0].ask(&trusting, "GET", "/limited", &nominated).status, 429);
    assert_eq!(told(&BOTH[0].ask(&trusting, "GET", "/", &nominated), "cf-connecting-ip"), ["198.51.100.77"]);
}

#[test]
fn a_trace_goes_on_with_its_state_and_begins_without_where_that_is_wanted() {
    const TRACE: &str = "00-11111111111111111111111111111111-2222222222222222-01";
    for (server, flags, protocol) in [
        ("", None, BOTH[0]),
        ("", None, BOTH[1]),
        ("[server]\ntraceparent = \"make\"", Some("-00"), BOTH[0]),
        ("[server]\ntraceparent = \"make-sampled\"", Some("-01"), BOTH[1]),
    ] {
        let gateway = start(server);
        let ask = |fields: &[(&str, &str)]| {
            let answer = protocol.ask(&gateway, "GET", "/", fields);
            (told(&answer, "traceparent"), told(&answer, "tracestate"))
        };
        let (trace, state) = ask(&[("tracestate", "a=1"), ("traceparent", TRACE), ("tracestate", "b=2")]);
        assert_eq!((trace, state), (vec![TRACE.to_owned()], vec!["a=1, b=2".to_owned()]), "{protocol:?}");
        let begun: [&[(&str, &str)]; 3] = [
            &[("tracestate", "a=1")],
            &[("tracestate", "a=1"), ("traceparent", "junk")],
            &[("tracestate", "a=1"), ("traceparent", TRACE), ("traceparent", TRACE)],
        ];
        for fields in begun {
            let (trace, state) = ask(fields);
            // A trace of ours without being asked for one would tell samplers of servers what to do.
            assert_eq!((trace.len(), state.len()), (usize::from(flags.is_some()), 0), "{protocol:?} {fields:?}");
            if let Some(flags) = flags {
                let is_ours = trace[0].len() == 55 && trace[0] != TRACE && trace[0].ends_with(flags);
                assert!(is_ours, "{protocol:?} {trace:?}");
            }
        }
        let (trace, state) = ask(&[("traceparent", TRACE), ("tracestate", "no state")]);
        assert_eq!((trace, state), (vec![TRACE.to_owned()], vec![]), "{protocol:?}");
    }
}
