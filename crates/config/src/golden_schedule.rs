//! Schedules and calendars: what they are lowered to, mistakes and plans.

use std::path::Path;

use super::{Certificates, Model, diff, parse};
use sluicegate_limiter::Algorithm;

const FRAME: &str = r#"[[listener]]
address = "127.0.0.1:8080"
[[route]]
name = "all"
respond = {}
limits = ["a"]
"#;

fn errors(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread).map(|parsed| parsed.model).unwrap_err().to_string()
}

fn model(text: &str) -> Model {
    let parsed = parse(text, Path::new("gateway.toml"), Certificates::Unread);
    let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(parsed.warnings.is_empty(), "{}", parsed.warnings);
    parsed.model
}

/// A limit with these lines, the first of which is the tenth of the file.
fn with(limit: &str) -> String {
    format!("{FRAME}\n[[limit]]\nname = \"a\"\n{limit}\n")
}

fn scheduled(active: &str) -> String {
    with(&format!("rate = \"9/s\"\nactive = {active}"))
}

/// The messages and remedies of each error, without the places.
fn told(text: &str) -> Vec<String> {
    let keep = |line: &str| {
        line.strip_prefix("error: ").or_else(|| line.trim_start().strip_prefix("= help: ")).map(str::to_owned)
    };
    errors(text).lines().filter_map(keep).collect()
}

#[test]
fn schedules_are_read_with_their_defaults() {
    for (active, shown) in [
        (
            "{ from = \"09:00\", until = \"18:00\", days = [\"mon\", \"tuesday\"], zone = \"Europe/Berlin\" }",
            "09:00 to 18:00, mon tue, Europe/Berlin",
        ),
        ("{ from = \"09:00\" }", "09:00 to 24:00, every day, UTC"),
        ("{ until = \"18:00:30\" }", "00:00 to 18:00:30, every day, UTC"),
        ("{ from = \"22:00\", until = \"06:00\" }", "22:00 to 06:00, every day, UTC"),
        ("{ days = [\"sunday\", \"sat\"] }", "00:00 to 24:00, sat sun, UTC"),
        ("{ from = \"2026-12-24T18:00\", zone = \"asia/kathmandu\" }", "from 2026-12-24T18:00, Asia/Kathmandu"),
        ("{ until = \"2026-12-24T18:00\" }", "until 2026-12-24T18:00, UTC"),
        (
            "{ from = \"2026-12-24T18:00\", until = \"2026-12-27T06:00:01\" }",
            "2026-12-24T18:00 to 2026-12-27T06:00:01, UTC",
        ),
    ] {
        let rule = &model(&scheduled(active)).limits[0];
        assert_eq!(rule.active.as_ref().map(ToString::to_string).as_deref(), Some(shown));
        let text = format!("{FRAME}active = {active}\n[[limit]]\nname = \"a\"\nrate = \"9/s\"\n");
        let route = &model(&text).routes[0];
        assert_eq!(route.active.as_ref().map(ToString::to_string).as_deref(), Some(shown));
    }
    let plain = model(&with("rate = \"9/s\""));
    assert!(plain.limits[0].active.is_none() && plain.routes[0].active.is_none());
}

#[test]
fn each_mistake_in_a_schedule_has_its_remedy() {
    for (active, message, help) in [
        (
            "{}",
            "`active` says no time",
            "give `from`, `until` or `days`: active = { from = \"09:00\", until = \"18:00\" }",
        ),
        (
            "{ zone = \"UTC\" }",
            "`active` says no time",
            "give `from`, `until` or `days`: active = { from = \"09:00\", until = \"18:00\" }",
        ),
        ("\"09:00\"", "`active` takes a table, not a string", "write it as { from = \"09:00\", until = \"18:00\" }"),
        (
            "{ from = 09:00:00 }",
            "`from` takes a time in quotes, not a date or time",
            "write it as \"09:00\" or \"2026-12-24T18:00\"",
        ),
        ("{ from = \"24:00\" }", "no day begins at 24:00", "write \"00:00\" for the beginning of a day"),
        (
            "{ from = \"09:00\", until = \"09:00\" }",
            "`active` ends when it begins",
            "set another end; for whole days leave both out, and name `days`",
        ),
        (
            "{ until = \"00:00\" }",
            "`active` ends when it begins",
            "set another end; for whole days leave both out, and name `days`",
        ),
        (
            "{ from = \"2026-12-24T18:00\", until = \"2026-12-24T17:00\" }",
            "`active` ends before it begins",
            "set a later end, or an earlier beginning",
        ),
        (
            "{ from = \"2026-12-24T18:00Z\" }",
            "`from`: invalid time \"2026-12-24T18:00Z\"",
            "a date and time is like \"2026-12-24T18:00\", by the clocks of `zone`",
        ),
        (
            "{ from = \"2026-12-24T18:00\", until = \"18:00\" }",
            "of `from` and `until` one has a date, and one has none",
            "write both as times of day, like \"09:00\", or both with a date, like \"2026-12-24T18:00\"",
        ),
        (
            "{ from = \"2026-12-24T18:00\", days = [\"mon\"] }",
            "`days` beside a date: it is one stretch of time",
            "remove `days`, or write `from` and `until` as times of day, like \"09:00\"",
        ),
        (
            "{ days = [] }",
            "`days` is empty",
            "leave it out for every day, or write days = [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]",
        ),
        (
            "{ days = \"mon\" }",
            "`days` takes an array, not a string",
            "write it as [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]",
        ),
        ("{ days = [\"mon\", \"monday\"] }", "\"monday\" is in `days` twice", "remove one"),
        (
            "{ from = \"09:00\", zone = \"+02:00\" }",
            "there is no time zone \"+02:00\"",
            "zones have IANA names, like \"Europe/Berlin\" or \"America/New_York\"; the default is \"UTC\"",
        ),
        (
            "{ from = \"09:00\", zone = \"America/NewYork\" }",
            "there is no time zone \"America/NewYork\"",
            "did you mean \"America/New_York\"?",
        ),
    ] {
        assert_eq!(told(&scheduled(active)), [message, help], "{active}");
    }
}

#[test]
fn calendars_are_read_with_their_zone() {
    let window = |settings: &str| {
        let model = model(&with(&format!("algorithm = \"fixed-window\"\nalign = \"calendar\"\n{settings}")));
        let Algorithm::FixedWindow(window) = &model.limits[0].spec.algorithm else { panic!("it is a fixed window") };
        let algorithm = &model.limits[0].spec.algorithm;
        let rates: Vec<String> = (0..window.rates().len()).map(|rate| algorithm.rate_text(rate)).collect();
        format!("{} {}", rates.join(" "), window.zone().unwrap())
    };
    assert_eq!(window("rate = \"1000/d\""), "1000/d UTC");
    assert_eq!(window("rate = \"5/7d\"\nzone = \"america/new_york\""), "5/7d America/New_York");
    assert_eq!(window("rate = \"5/week\"\nweek_start = \"sunday\""), "5/7d UTC");
    let several = "rate = [\"100/60m\", \"1000/24h\", \"20000 / month\"]\nzone = \"Europe/Berlin\"\nmax_wait = \"1h\"";
    assert_eq!(window(several), "100/h 1000/d 20000/month Europe/Berlin");
}

#[test]
fn what_no_calendar_has() {
    let calendar = |rest: &str| with(&format!("algorithm = \"fixed-window\"\nalign = \"calendar\"\n{rest}"));
    let months = "months are windows of a calendar: algorithm = \"fixed-window\" with align = \"calendar\"";
    for (text, message, help) in [
        (
            calendar("rate = \"5/s\""),
            "invalid calendar rate \"5/s\"",
            "a calendar has no windows of 1s: count per \"h\", \"d\", \"week\" or \"month\"; or leave \
             `align` out: windows of any length begin at their multiples in UTC",
        ),
        (
            calendar("rate = \"5/2month\""),
            "invalid rate \"5/2month\"",
            "the part after the slash is no duration: \"month\" is no unit of time: use ns, us, ms, s, m, h or d",
        ),
        (
            calendar("rate = \"0/month\""),
            "invalid rate \"0/month\"",
            "a rate of 0 would admit nobody: give at least 1, or refuse in the route",
        ),
        (calendar("rate = []"), "`rate` has 0 rates", "give 1 to 4; all of them hold"),
        (calendar(""), "[[limit]] has no `rate`", "add rate = \"1000/d\""),
        (
            calendar("rate = 5"),
            "`rate` takes a rate in quotes, not an integer",
            "write it as \"1000/d\" or [\"1000/d\", \"20000/month\"]",
        ),
        (
            calendar("rate = \"5/d\"\nzone = \"Europe/Berln\""),
            "there is no time zone \"Europe/Berln\"",
            "did you mean \"Europe/Berlin\"?",
        ),
        (
            calendar("rate = [\"5/month\", \"9/d\"]\ncost = 6"),
            "a cost of 6 never fits into the rate 5/month: every request would be refused",
            "lower the cost to at most 5, or raise the rate",
        ),
        (with("rate = \"5/month\""), "invalid rate \"5/month\"", months),
        (with("algorithm = \"fixed-window\"\nrate = \"5/month\""), "invalid rate \"5/month\"", months),
        (
            with("algorithm = \"fixed-window\"\nrate = \"5/d\"\nzone = \"Europe/Berlin\""),
            "`zone` without a calendar: other windows are the same everywhere",
            "add align = \"calendar\", or remove `zone`",
        ),
        (
            with("algorithm = \"fixed-window\"\nrate = \"5/d\"\nalign = \"calender\""),
            "`align` cannot be \"calender\"",
            "did you mean \"calendar\"?",
        ),
        (
            with("rate = \"5/d\"\nzone = \"Europe/Berlin\""),
            "`zone` is no setting of the algorithm timer-wheel",
            "timer-wheel has rate, slots, bound, max_queue; `zone` is of fixed-window",
        ),
    ] {
        assert_eq!(told(&text), [message, help], "{text}");
    }
}

#[test]
fn a_rate_per_month_that_never_refuses_is_called_by_its_name() {
    let text = with("algorithm = \"fixed-window\"\nalign = \"calendar\"\nrate = [\"5/month\", \"9/month\"]");
    let parsed =
        parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}"));
    let warnings = parsed.warnings.to_string();
    assert!(
        warnings.contains("the rate 9/month never refuses anything: 5/month is stricter over every span"),
        "{warnings}"
    );
}

#[test]
fn plans_say_when_something_holds_and_by_whose_calendar() {
    let plan = |old: &str, new: &str| diff(&model(old), &model(new)).to_string();
    let berlin = "{ from = \"09:00\", until = \"18:00\", zone = \"Europe/Berlin\" }";
    let always = with("rate = \"9/s\"");
    assert_eq!(
        plan(&always, &scheduled(berlin)),
        "limit a: changed: active always -> 09:00 to 18:00, every day, Europe/Berlin\nkept: 1 listener, 1 route"
    );
    assert_eq!(plan(&scheduled(berlin), &scheduled(berlin)), "nothing changed");
    let route = always.replace("respond = {}", "respond = {}\nactive = { until = \"2026-12-24T18:00\" }");
    assert_eq!(
        plan(&route, &always),
        "route all: changed: active until 2026-12-24T18:00, UTC -> always\nkept: 1 listener, 1 limit"
    );
    let fixed = |rest: &str| with(&format!("algorithm = \"fixed-window\"\n{rest}"));
    let of = |rate: &str, zone: &str| fixed(&format!("align = \"calendar\"\nrate = \"{rate}\"\nzone = \"{zone}\""));
    let kept = "\nkept: 1 listener, 1 route";
    for (old, new, line) in [
        (of("5/month", "UTC"), of("6/month", "UTC"), "changed: rate 5/month -> 6/month"),
        (of("5/d", "UTC"), of("5/month", "UTC"), "reset, it counts from zero: rate 5/d -> 5/month"),
        (of("5/d", "UTC"), of("5/d", "Europe/Berlin"), "reset, it counts from zero: zone UTC -> Europe/Berlin"),
        (fixed("rate = \"5/d\""), of("5/d", "UTC"), "reset, it counts from zero: align epoch -> calendar"),
    ] {
        assert_eq!(plan(&old, &new), format!("limit a: {line}{kept}"));
    }
}

#[test]
fn a_route_is_shadowed_only_by_one_that_matches_whenever_it_does() {
    let routes = |first: &str, second: &str| {
        let route = |name: &str, active: &str| format!("[[route]]\nname = \"{name}\"\nrespond = {{}}\n{active}\n");
        let text =
            format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n{}{}", route("first", first), route("second", second));
        let parsed = parse(&text, Path::new("gateway.toml"), Certificates::Unread);
        let warnings = parsed.unwrap_or_else(|errors| panic!("{errors}")).warnings.to_string();
        warnings.contains("the route \"second\" can never match")
    };
    let (day, night) =
        ("active = { from = \"06:00\", until = \"18:00\" }", "active = { from = \"18:00\", until = \"06:00\" }");
    for (first, second, never) in
        [("", "", true), (day, "", false), (day, night, false), (day, day, true), ("", day, true)]
    {
        assert_eq!(routes(first, second), never, "{first} {second}");
    }
}

#[test]
fn what_the_page_shows_is_read() {
    const PAGE: &str = include_str!("../../../docs/limits.md");
    let (_, sections) = PAGE.split_once("## When a limit holds").unwrap();
    let (sections, _) = sections.split_once("## Counting failures only").unwrap();
    let blocks: Vec<&str> = sections.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let listener = "[[listener]]\naddress = \"127.0.0.1:8080\"\n";
    let rest = "[[route]]\nname = \"all\"\nrespond = {}\nlimits = [\"office-hours\", \"plan\"]\n";
    let model = model(&format!("{listener}{}{rest}", blocks.concat()));
    let holds = |active: Option<&sluicegate_time::ScheduleRules>| active.map(ToString::to_string).unwrap_or_default();
    assert_eq!(holds(model.limits[0].active.as_ref()), "09:00 to 18:00, mon tue wed thu fri, Europe/Berlin");
    assert_eq!(holds(model.routes[0].active.as_ref()), "2026-12-24T18:00 to 2026-12-24T19:00, Europe/Berlin");
    let plan = &model.limits[1].spec.algorithm;
    assert_eq!([plan.rate_text(0), plan.rate_text(1)], ["1000/d", "20000/month"]);
}
