//! Plans files: what they mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::{Certificates, KnownPlans, LoadError, Loaded, Model, diff, load, load_again};
use sluicegate_admission::AddressForm;
use sluicegate_limiter::Mode;
use sluicegate_time::{Span, Wall};

/// The year 2100: every file has been there for long.
pub(super) const NOW: Wall = Wall::from_nanos(4_102_444_800_000_000_000);

const GATEWAY: &str = r#"
[[listener]]
address = "127.0.0.1:1"
[[upstream]]
name = "app"
servers = ["echo:a"]
[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "10/s"
[[limit]]
name = "bucket"
algorithm = "token-bucket"
rate = "10/s"
burst = 5
timeout = "5s"
[[route]]
name = "api"
limits = ["per-key", "bucket"]
upstream = "app"
plans = { file = "plans.toml", key = "header:x-api-key" }
"#;

const PLANS: &str = r#"default = "free"

[plan.free]

[plan.pro]
per-key = { rate = ["100/s", "1000/m"], max_wait = "1s" }

[plan.internal]
per-key = { mode = "off" }
bucket = { burst = 50 }

[keys]
k-1 = "pro"
"k 2" = "internal" # ours
k-3 = "free"
"#;

struct Files(TempDir);

impl Files {
    fn new(gateway: &str, plans: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("gateway.toml", gateway);
        files.write("plans.toml", plans);
        files
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn try_load(&self, certificates: Certificates, known: &KnownPlans) -> Result<Loaded, LoadError> {
        load_again(&self.0.path().join("gateway.toml"), certificates, known)
    }

    fn load(&self) -> Loaded {
        self.load_again(&KnownPlans::default())
    }

    fn load_again(&self, known: &KnownPlans) -> Loaded {
        self.try_load(Certificates::Lenient(NOW), known).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The report, without the directory.
    fn report(&self, certificates: Certificates) -> String {
        let report = match self.try_load(certificates, &KnownPlans::default()) {
            Ok(loaded) => loaded.warnings.to_string(),
            Err(error) => error.to_string(),
        };
        format!("\n{}", report.replace(&format!("{}/", self.0.path().display()), ""))
    }
}

/// The words of `check` about a plans file.
fn check(plans: &str) -> String {
    Files::new(GATEWAY, plans).report(Certificates::Strict(NOW))
}

/// The messages and remedies, without the places.
fn said(report: &str) -> Vec<String> {
    let keep = |line: &str| {
        let found = line.strip_prefix("error: ").or_else(|| line.strip_prefix("warning: "));
        found.or_else(|| line.trim_start().strip_prefix("= help: ")).map(str::to_owned)
    };
    report.lines().filter_map(keep).collect()
}

fn plans_of(model: &Model) -> Vec<String> {
    let show = |limit: &super::PlanLimit| {
        let rates: Vec<String> = limit.spec.algorithm.rates().iter().map(ToString::to_string).collect();
        format!("{} {} {} {:?} {}", limit.plan, limit.spec.name, rates.join("+"), limit.spec.mode, limit.spec.max_wait)
    };
    model.plan_limits.iter().map(show).collect()
}

#[test]
fn a_plans_file_overrides_numbers_and_nothing_else() {
    let files = Files::new(GATEWAY, PLANS);
    let Loaded { model, warnings, files: named, .. } = files.load();
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(
        plans_of(&model),
        ["internal bucket 10/s Enforce 0s", "internal per-key 10/s Off 0s", "pro per-key 100/s+1000/m Enforce 1s",]
    );
    assert_eq!(model.plan_limits[1].spec.mode, Mode::Off);
    assert_eq!(model.plan_limits[2].spec.max_keys, model.limits[0].spec.max_keys);
    assert_eq!(model.limits[0].spec.max_wait, Span::ZERO, "the limit itself is what it was");
    let book = model.routes[0].plans.as_ref().unwrap();
    let names: Vec<&str> = book.names().iter().map(|name| &**name).collect();
    assert_eq!((names, book.default(), book.keys().len()), (vec!["free", "internal", "pro"], 0, 3));
    let plan_of = |key: &str| {
        let keys = book.keys();
        keys.plan_of(keys.key().fingerprint_of_value(key, AddressForm::default(), keys.hasher()).unwrap())
    };
    assert_eq!([plan_of("k-1"), plan_of("k 2"), plan_of("k-3"), plan_of("k-4")], [Some(2), Some(1), Some(0), None]);
    assert_eq!(named, [files.0.path().join("plans.toml")]);
}

#[test]
fn every_key_of_a_limit_may_tell_plans_apart() {
    for (key, values) in [
        ("\"client-ip\"", &["192.0.2.7", "2001:db8::1"][..]),
        ("[\"host\", \"header:k\"]", &["API.example.com + gold"]),
        ("\"basic:user\"", &["al"]),
        ("\"cookie:id\"", &["a b"]),
        ("\"path\"", &["/a/b"]),
    ] {
        let lines: Vec<String> = values.iter().map(|value| format!("\"{value}\" = \"free\"\n")).collect();
        let plans = format!("default = \"free\"\n[plan.free]\n[keys]\n{}", lines.concat());
        let files = Files::new(&GATEWAY.replace("key = \"header:x-api-key\" }", &format!("key = {key} }}")), &plans);
        assert_eq!(files.load().model.routes[0].plans.as_ref().unwrap().keys().len(), values.len(), "{key}");
    }
}

#[test]
fn routes_share_a_file_and_a_file_may_have_two_keys() {
    let more = "[[route]]\nname = \"b\"\npath = \"/b\"\nrespond = {}\nlimits = [\"bucket\"]\nplans = ";
    let same = format!("{GATEWAY}{more}{{ file = \"./plans.toml\", key = \"header:X-Api-Key\" }}\n");
    let same = same.replace("./plans", "plans");
    let model = Files::new(&same, PLANS).load().model;
    let books: Vec<_> = model.routes.iter().map(|route| route.plans.clone().unwrap()).collect();
    assert!(Arc::ptr_eq(&books[0], &books[1]));
    let other = format!("{GATEWAY}{more}{{ file = \"plans.toml\", key = \"cookie:k\" }}\n");
    let model = Files::new(&other, PLANS).load().model;
    let books: Vec<_> = model.routes.iter().map(|route| route.plans.clone().unwrap()).collect();
    assert!(!Arc::ptr_eq(&books[0], &books[1]));
    assert_eq!(model.plan_limits.len(), 3, "each limit of a plan once");
}

#[test]
fn no_key_is_shown_but_to_who_checks() {
    let secrets = "[keys]\nsecret-1 = \"prp\"\n\"secret-2\" = \"pro\"\nsecret-2 = \"pro\"\nsecret-3 secret-4\n\
                   pro = \"secret-5\"\nse.cret-6 = \"pro\"\n[secret-7]\n# secret-8 \u{1}\n";
    let plans = PLANS.split("[keys]").next().unwrap().to_owned() + secrets;
    let files = Files::new(GATEWAY, &plans);
    let logged = files.report(Certificates::Lenient(NOW));
    assert!(!logged.contains("cret-"), "{logged}");
    assert!(logged.contains("--> plans.toml:15:1") && logged.contains("the first is at plans.toml:14:1"), "{logged}");
    assert_eq!(said(&logged), said(&files.report(Certificates::Strict(NOW))));
    let by_address = GATEWAY.replace("key = \"header:x-api-key\" }", "key = \"client-ip\" }");
    let logged = Files::new(&by_address, PLANS).report(Certificates::Lenient(NOW));
    assert!(!logged.contains("k-1") && logged.contains("client-ip is an address, such as 192.0.2.7"), "{logged}");
}

#[test]
fn what_a_plans_file_lacks() {
    let whole = "default = \"a\"\n[plan.a]\n[keys]\n";
    assert_eq!(check(whole), "\n");
    for (plans, expected) in [
        ("[plan.a]\n[keys]\n", &["the plans file has no `default`", "add default = \"free\""][..]),
        (
            "default = \"a\"\n[keys]\nk = \"a\"\n",
            &["the plans file has no plan", "add [plan.free], and what it overrides"],
        ),
        (
            "default = \"a\"\n[plan.a]\n",
            &["the plans file has no [keys]", "add a line [keys] at its end, even if no key follows"],
        ),
        (
            "default = \"a\"\nkeys = { k = \"a\" }\n[plan.a]\n",
            &["`keys` is a table of its own", "write it last: a line [keys], then a line for each key"],
        ),
        (
            "default = \"a\"\n[plan.a]\n[plam.b]\n[keys]\n",
            &["unknown key `plam` in the plans file", "did you mean `plan`?"],
        ),
        (
            "default = 5\n[plan.a]\n[keys]\n",
            &["`default` takes the name of a plan in quotes, not an integer", "write it as \"free\""],
        ),
        (
            "default = \"a\"\nplan = 5\n[keys]\n",
            &[
                "the plans file has no plan",
                "add [plan.free], and what it overrides",
                "`plan` takes a table, not an integer",
                "write it as [plan.free]",
            ],
        ),
    ] {
        assert_eq!(said(&check(plans)), expected, "{plans}");
    }
    let broken = check("default = \"a\n[plan.a]\n[keys]\nk = 5\n");
    assert!(broken.contains("--> plans.toml:1:1") && broken.ends_with("plans.toml: 1 error"), "{broken}");
    let files = Files::new(GATEWAY, "");
    files.write("plans.toml", b"default = \"\xff\"\n");
    assert!(files.report(Certificates::Strict(NOW)).contains("this is not UTF-8\n --> plans.toml:1:12"));
    files.write("plans.toml", b"\xef\xbb\xbfdefault = \"a\"\n[plan.a]\n[keys]\nk = \"\xff\"\n");
    assert!(files.report(Certificates::Strict(NOW)).contains("this is not UTF-8\n --> plans.toml:4:1"));
}

#[test]
fn what_a_route_may_not_say_of_plans() {
    for (plans, expected) in [
        (
            "\"plans.toml\"",
            &[
                "`plans` takes a table, not a string",
                "write it as { file = \"plans.toml\", key = \"header:x-api-key\" }",
            ][..],
        ),
        ("{ file = \"plans.toml\" }", &["`plans` has no `key`", "add key = \"header:x-api-key\""]),
        (
            "{ key = \"host\", default = 1 }",
            &[
                "`plans` has no `file`",
                "add file = \"plans.toml\"",
                "unknown key `default` in `plans`",
                "keys of `plans`: file, key",
            ],
        ),
        (
            "{ file = \"plans.toml\", key = \"global\" }",
            &[
                "`key` = global is the same for everybody",
                "name what tells clients apart, such as \"header:x-api-key\"",
            ],
        ),
        (
            "{ file = \"plans.toml\", key = \"heder:x\" }",
            &["unknown key source \"heder:x\"", "did you mean \"header:\"?"],
        ),
        ("{ file = \"\", key = \"host\" }", &["invalid file name \"\"", "name a plans file, such as \"plans.toml\""]),
        (
            "{ file = \"none.toml\", key = \"host\" }",
            &[
                "`file` = \"none.toml\" cannot be used: there is no such file",
                "name a plans file; a relative path starts from the directory of this file",
            ],
        ),
        (
            "{ file = \"/dev/null\", key = \"host\" }",
            &[
                "`file` = \"/dev/null\" cannot be used: it is not a regular file",
                "name a plans file; a relative path starts from the directory of this file",
            ],
        ),
    ] {
        let gateway = GATEWAY.replace("{ file = \"plans.toml\", key = \"header:x-api-key\" }", plans);
        assert_eq!(said(&Files::new(&gateway, PLANS).report(Certificates::Strict(NOW))), expected, "{plans}");
    }
    let unused = GATEWAY.replace("limits = [\"per-key\", \"bucket\"]", "limits = []");
    let report = Files::new(&unused, "default = \"a\"\n[plan.a]\n[keys]\n").report(Certificates::Strict(NOW));
    assert!(report.contains("warning: `plans` has no effect: the route has no limits"), "{report}");
    let of_a_limit = GATEWAY.replace("burst = 5", "burst = 5\nplans = 1");
    assert!(
        Files::new(&of_a_limit, PLANS).report(Certificates::Strict(NOW)).contains("unknown key `plans` in [[limit]]")
    );
}

#[test]
fn errors_in_both_files_are_told_in_one_run() {
    let gateway = GATEWAY.replace("burst = 5", "burst = 0");
    let report =
        Files::new(&gateway, &PLANS.replace("default = \"free\"", "default = \"x\"")).report(Certificates::Strict(NOW));
    assert!(report.contains("--> gateway.toml:15:9") && report.contains("--> plans.toml:1:11"), "{report}");
    assert!(report.ends_with("gateway.toml: 2 errors"), "{report}");
}

#[test]
fn a_combination_that_no_request_fits_is_told_where_the_plan_makes_it() {
    let costly = GATEWAY.replace("limits = [\"per-key\", \"bucket\"]", "limits = [\"per-key\", \"bucket\"]\ncost = 4");
    let tight = PLANS.replace("burst = 50", "burst = 3");
    let said_of = |gateway: &str, plans: &str| said(&Files::new(gateway, plans).report(Certificates::Strict(NOW)));
    assert_eq!(
        said_of(&costly, &tight),
        [
            "a cost of 4 never fits into a burst of 3: every request would be refused",
            "lower the cost to at most 3, or raise the burst"
        ]
    );
    assert!(said_of(GATEWAY, &tight).is_empty());
    // The slots are the limit's, the window is the plan's.
    let slotted = GATEWAY.replacen("rate = \"10/s\"", "rate = \"10/s\"\nslots = 8", 1);
    assert_eq!(
        said_of(&slotted, &PLANS.replace("[\"100/s\", \"1000/m\"]", "\"100/7ms\"")),
        [
            "8 slots do not divide the window of 100/7ms",
            "use slots = 7, the nearest that does (equal slots of at least 1ms)"
        ]
    );
}

#[test]
fn a_warning_about_what_a_plan_does_not_change_is_given_once() {
    let doubtful = GATEWAY.replacen("rate = \"10/s\"", "rate = \"10/s\"\nbound = \"slot\"\nslots = 5", 1);
    let report = Files::new(&doubtful, PLANS).report(Certificates::Strict(NOW));
    assert!(report.contains("`slots` has no effect") && report.ends_with("gateway.toml: 1 warning"), "{report}");
    let own = PLANS.replace("per-key = { mode = \"off\" }", "per-key = { rate = [\"10/s\", \"20/s\"] }");
    let report = Files::new(GATEWAY, &own).report(Certificates::Strict(NOW));
    assert!(report.contains("the rate 20/s never refuses anything"), "{report}");
    assert!(report.contains("--> plans.toml:9:1") && report.ends_with("plans.toml: 1 warning"), "{report}");
}

#[test]
fn two_files_may_not_override_a_limit_in_plans_of_one_name() {
    let more = "[[route]]\nname = \"b\"\npath = \"/b\"\nrespond = {}\nlimits = [\"bucket\"]\nplans = { file = \"q.toml\", key = \"host\" }\n";
    let files = Files::new(&format!("{GATEWAY}{more}"), PLANS);
    files.write("q.toml", "default = \"internal\"\n[plan.internal]\nbucket = { burst = 7 }\n[keys]\n");
    let report = files.report(Certificates::Strict(NOW));
    assert_eq!(
        said(&report),
        [
            "the plan \"internal\" overrides the limit \"bucket\" in another plans file too",
            "give the plan of one of the files another name"
        ]
    );
}

#[test]
fn twenty_mistakes_are_told_and_then_the_reading_ends() {
    let lines = (0..100).map(|at| format!("k{at} = 5\n")).collect::<Vec<_>>().concat();
    let report = check(&format!("default = \"a\"\n[plan.a]\n[keys]\n{lines}"));
    assert!(report.ends_with("plans.toml: 20 errors"), "{report}");
    let twice: String = (0..100).map(|_| "k = \"a\"\n").collect();
    let report = check(&format!("default = \"a\"\n[plan.a]\n[keys]\n{twice}"));
    assert!(report.contains("--> plans.toml:24:1") && report.ends_with("plans.toml: 20 errors"), "{report}");
    let long = "k".repeat(1_025);
    assert_eq!(
        said(&check(&format!("default = \"a\"\n[plan.a]\n[keys]\n{long} = \"a\"\n"))),
        ["a key of 1025 bytes", "it has at most 1024"]
    );
    let huge = "k".repeat(70_000);
    let report = check(&format!("default = \"a\"\n[plan.a]\n[keys]\n{huge}\nb = 5\n"));
    assert!(said(&report)[0].contains("longer than 64 KiB") && report.ends_with("plans.toml: 2 errors"), "{report}");
    assert_eq!(said(&check(&"# x\n".repeat(300_000)))[0], "the plans take more than 1 MiB before [keys]");
}

#[test]
fn a_file_that_is_as_it_was_is_not_built_again() {
    let files = Files::new(GATEWAY, PLANS);
    let book = |loaded: &Loaded| loaded.model.routes[0].plans.clone().unwrap();
    let first = files.load();
    let known = || first.model.known_plans();
    let second = files.load_again(&known());
    assert!(Arc::ptr_eq(&book(&first), &book(&second)) && first.digest == second.digest);
    // Written again with the same text: read, and seen to be the same.
    files.write("plans.toml", PLANS);
    assert!(Arc::ptr_eq(&book(&first), &book(&files.load_again(&known()))));
    files.write("plans.toml", PLANS.replace("k-1", "k-7"));
    let changed = files.load_again(&known());
    assert!(!Arc::ptr_eq(&book(&first), &book(&changed)) && first.digest != changed.digest);
    // The same length, and so soon after that its time need not have moved on: a young file is read again.
    let soon = Certificates::Lenient(Wall::EPOCH);
    let young = files.try_load(soon, &KnownPlans::default()).unwrap();
    let path = files.0.path().join("plans.toml");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    files.write("plans.toml", PLANS.replace("k-1", "k-8"));
    fs::File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
    let again = files.try_load(soon, &young.model.known_plans()).unwrap();
    assert_ne!(young.digest, again.digest);
    // Another meaning of the same text.
    files.write("gateway.toml", GATEWAY.to_owned() + "[client]\nipv6_prefix = 56\n");
    assert!(!Arc::ptr_eq(&book(&again), &book(&files.load_again(&again.model.known_plans()))));
}

#[test]
fn a_reload_tells_what_changes_and_names_no_key() {
    let files = Files::new(GATEWAY, PLANS);
    let first = files.load();
    let plan = |gateway: &str, plans: &str| {
        files.write("gateway.toml", gateway);
        files.write("plans.toml", plans);
        let text = diff(&first.model, &files.load_again(&first.model.known_plans()).model).to_string();
        text.replace(&format!("{}/", files.0.path().display()), "")
    };
    let kept = "\nkept: 1 listener, 1 upstream, 2 limits, 1 route";
    assert_eq!(plan(GATEWAY, &format!("# a comment\n{PLANS}")), "nothing changed");
    assert_eq!(
        plan(
            GATEWAY,
            &PLANS
                .replace("k-1 = \"pro\"", "k-1 = \"free\"\nk-9 = \"pro\"\nk-8 = \"pro\"")
                .replace("k-3 = \"free\"\n", "")
        ),
        format!("plans plans.toml by header:x-api-key: changed: keys 4, was 3: +2 -1, 1 in another plan{kept}")
    );
    assert_eq!(
        plan(
            GATEWAY,
            &PLANS
                .replace("\"1000/m\"", "\"2000/m\"")
                .replace("burst = 50", "mode = \"shadow\"")
                .replace("= \"free\"\n\n", "= \"pro\"\n")
        ),
        format!(
            "plans plans.toml by header:x-api-key: changed: default free -> pro\n\
             limit bucket in the plan internal: rescaled, its counts go on: mode enforce -> shadow, burst 50 -> 5\n\
             limit per-key in the plan pro: changed: rate 100/s and 1000/m -> 100/s and 2000/m{kept}"
        )
        .replace("mode enforce -> shadow, burst 50 -> 5", "burst 50 -> 5, mode enforce -> shadow")
    );
    assert_eq!(
        plan(GATEWAY, "default = \"x\"\n[plan.x]\nbucket = { burst = 9 }\n[keys]\n"),
        format!(
            "plans plans.toml by header:x-api-key: changed: plans +x -free -internal -pro, default free -> x, keys 0, was 3: +0 -3\n\
             limit bucket in the plan x: added\n\
             limit bucket in the plan internal: removed\n\
             limit per-key in the plan internal: removed\n\
             limit per-key in the plan pro: removed{kept}"
        )
    );
    assert_eq!(
        plan(
            &GATEWAY.replace("status", "").replacen("key = \"header:x-api-key\"", "key = \"host\"\nstatus = 503", 1),
            PLANS
        ),
        "limit per-key: reset, it counts from zero: key header:x-api-key -> host, status 429 -> 503\n\
         limit per-key in the plan internal: reset, it counts from zero: key header:x-api-key -> host\n\
         limit per-key in the plan pro: reset, it counts from zero: key header:x-api-key -> host\n\
         kept: 1 listener, 1 upstream, 1 limit, 1 route"
    );
    let without = GATEWAY.replace("plans = {", "# ");
    let text = plan(&without, PLANS);
    assert!(text.contains("plans plans.toml by header:x-api-key: removed\n"), "{text}");
    assert!(text.contains("route api: changed: plans plans.toml by header:x-api-key -> none"), "{text}");
}

#[test]
fn files_that_are_not_read_are_no_error() {
    let files = Files::new(GATEWAY, "nonsense");
    let model = files.try_load(Certificates::Unread, &KnownPlans::default()).unwrap().model;
    assert!(model.routes[0].plans.is_none() && model.plan_limits.is_empty());
    assert!(load(Path::new("/nonexistent/gateway.toml"), Certificates::Unread).is_err());
}

/// The plan of each key, as TOML's own reader reads the whole file.
fn naive(text: &str) -> Option<BTreeMap<String, String>> {
    let table: toml::Table = text.parse().ok()?;
    let keys = table.get("keys")?.as_table()?;
    let entry = |(key, plan): (&String, &toml::Value)| Some((key.clone(), plan.as_str()?.to_owned()));
    keys.iter().map(entry).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_file_is_read_as_tomls_own_reader_reads_it(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec!["a", "b", "\"a\"", "'b'", "\"c d\"", "\"\\u0061\"", "e.f", "", "#", "é", "\"é\""]),
                prop::sample::select(vec![" = ", "=", " "]),
                prop::sample::select(vec!["\"pro\"", "'free'", "\"internal\" # x", "pro", "5", "\"\"\"pro\"\"\"", "\"pro"]),
                prop::sample::select(vec!["\n", "\r\n", "\n\n", "\n# \"k\" = 5\n"]),
            ),
            0..4,
        ),
    ) {
        let keys: String = lines.iter().map(|(key, is, plan, end)| [*key, *is, *plan, *end].concat()).collect::<Vec<_>>().concat();
        let head = PLANS.split_inclusive("[keys]\n").next().unwrap();
        let text = format!("{head}{keys}");
        let files = Files::new(GATEWAY, &text);
        let ours = files.try_load(Certificates::Lenient(NOW), &KnownPlans::default());
        match (ours, naive(&text)) {
            (Ok(loaded), Some(expected)) => {
                let book = loaded.model.routes[0].plans.clone().unwrap();
                let keys = book.keys();
                prop_assert_eq!(keys.len(), expected.len());
                for (key, plan) in expected {
                    let print = keys.key().fingerprint_of_value(&key, AddressForm::default(), keys.hasher()).unwrap();
                    let found = keys.plan_of(print).and_then(|plan| book.names().get(usize::from(plan)).cloned());
                    prop_assert_eq!(found.as_deref(), Some(&*plan), "{}", key);
                }
            }
            (Err(_), None) => {}
            (ours, expected) => prop_assert!(false, "{:?} {:?} of {}", ours.map(|_| "read"), expected, text),
        }
    }
}
