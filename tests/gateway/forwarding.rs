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
