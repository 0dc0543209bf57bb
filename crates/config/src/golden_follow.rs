//! `[rules]` and the text that it follows: the reports, and what holds.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::followed::FollowedCopy;
use super::{Certificates, KnownPlans, Loaded, TextOrigin, diff, load, load_following, parse};
use sluicegate_time::Wall;

const FRAME: &str = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[admin]\naddress = \"127.0.0.1:9900\"\n";

/// As a whole gateway has it, whose other sections would be wrong here.
const FOLLOWED: &str = "\
# Rules of all.
[[listener]]
address = \"127.0.0.1:1\"
nonsense = true
[unheard]
of = 1
[[upstream]]
name = \"app\"
servers = [\"echo:a\"]
[[limit]]
name = \"l\"
rate = \"7/s\"
[[route]]
name = \"all\"
upstream = \"app\"
limits = [\"l\"]
";

const LENIENT: Certificates = Certificates::Lenient(Wall::EPOCH);

/// A directory with a configuration that follows.
struct Place(tempfile::TempDir);

impl Place {
    fn new(keys: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::write(place.file(), format!("{FRAME}[rules]\nfollow = \"https://rules.example/text\"\n{keys}")).unwrap();
        place
    }

    fn keeps(self, text: &str) -> Self {
        fs::write(self.kept(), text).unwrap();
        self
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("gateway.toml")
    }

    fn kept(&self) -> PathBuf {
        self.0.path().join("gateway.toml.followed")
    }

    fn load(&self) -> Loaded {
        load(&self.file(), LENIENT).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The report, with short paths.
    fn report(&self) -> String {
        let report = load(&self.file(), LENIENT).unwrap_err().to_string();
        report.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn warnings(loaded: &Loaded) -> Vec<&str> {
    loaded.warnings.diagnostics().iter().map(|found| &*found.message).collect()
}

#[test]
fn rules_of_the_followed_text_hold_and_nothing_else_of_it() {
    let place = Place::new("").keeps(FOLLOWED);
    let loaded = place.load();
    let model = &loaded.model;
    assert_eq!(warnings(&loaded), [""; 0]);
    assert_eq!((&*model.routes[0].name, &*model.limits[0].spec.name, &*model.upstreams[0].name), ("all", "l", "app"));
    assert_eq!((model.listeners.len(), model.listeners[0].address.tcp().unwrap().port()), (1, 8080));
    assert_eq!(loaded.files, [place.kept()]);
    let whole = FOLLOWED.split_once("[[upstream]]").unwrap().1;
    let alone = parse(&format!("{FRAME}[[upstream]]{whole}"), &place.file(), Certificates::Unread).unwrap().model;
    let plan = diff(&alone, model).to_string();
    assert!(plan.starts_with("[rules]: added\nkept: 1 listener, 1 upstream, 1 limit, 1 route"), "{plan}");
}

#[test]
fn another_followed_text_is_another_digest_and_its_origin_is_none() {
    let place = Place::new("").keeps(FOLLOWED);
    let before = place.load();
    let kept = FollowedCopy::read(&place.kept()).unwrap().unwrap();
    assert_eq!(kept, FollowedCopy { text: FOLLOWED.to_owned(), origin: None });
    let origin = TextOrigin { url: "https://rules.example/text".into(), etag: None, time: "t".into() };
    fs::write(place.kept(), FollowedCopy { origin: Some(origin), ..kept }.to_file().unwrap()).unwrap();
    assert_eq!(place.load().digest, before.digest);
    fs::write(place.kept(), FOLLOWED.replace("7/s", "8/s")).unwrap();
    let after = place.load();
    assert_ne!(after.digest, before.digest);
    assert_eq!(after.text_digest, before.text_digest);
}

#[test]
fn a_kept_text_that_was_changed_by_hand_is_of_no_origin() {
    let place = Place::new("");
    let origin = TextOrigin { url: "https://rules.example/text".into(), etag: Some("\"1\"".into()), time: "t".into() };
    let content = FollowedCopy { text: FOLLOWED.to_owned(), origin: Some(origin.clone()) }.to_file().unwrap();
    let place = place.keeps(&content);
    assert_eq!(FollowedCopy::read(&place.kept()).unwrap().unwrap().origin, Some(origin));
    let place = place.keeps(&content.replace("7/s", "8/s"));
    assert_eq!(FollowedCopy::read(&place.kept()).unwrap().unwrap().origin, None);
    assert_eq!(place.load().model.routes.len(), 1);
}

#[test]
fn mistakes_in_the_followed_text_name_it_and_its_own_line() {
    let place = Place::new("every = \"1h\"\n").keeps(&FOLLOWED.replace("7/s", "7/x"));
    let report = place.report();
    let lines: Vec<_> = report.lines().collect();
    assert_eq!(
        lines[1..5],
        ["  --> gateway.toml.followed:12:8", "   |", "12 | rate = \"7/x\"", "   |        ^^^^^"],
        "{report}"
    );
    assert!(report.ends_with("gateway.toml.followed: 1 error"), "{report}");
}

#[test]
fn a_candidate_is_named_by_its_address_and_the_kept_text_stays() {
    let place = Place::new("").keeps(FOLLOWED);
    let candidate = |text: &str| super::Candidate { text: text.to_owned(), from: "https://rules.example/text".into() };
    let try_it = |text: &str| load_following(&candidate(text), &place.file(), LENIENT, &KnownPlans::default());
    let twice = FOLLOWED.replace("[[route]]", "[[limit]]\nname = \"l\"\nrate = \"1/s\"\n[[route]]");
    let report = try_it(&twice).unwrap_err().to_string();
    assert!(report.contains("--> https://rules.example/text:14:8\n"), "{report}");
    assert!(report.contains("https://rules.example/text:11:8\n"), "the first one, {report}");
    let loaded = try_it(&FOLLOWED.replace("7/s", "8/s")).unwrap();
    assert_ne!(loaded.digest, place.load().digest);
    for (text, message) in [
        ("", "error: the file has no [[route]]\n --> https://rules.example/text:1:1\n"),
        ("a = [1,\nb = 2", "--> https://rules.example/text:"),
        ("<html>", "--> https://rules.example/text:1:1"),
    ] {
        let report = try_it(text).unwrap_err().to_string();
        assert!(report.contains(message) && report.ends_with("https://rules.example/text: 1 error"), "{report}");
    }
    assert_eq!(fs::read_to_string(place.kept()).unwrap(), FOLLOWED);
}

#[test]
fn mistakes_of_both_texts_are_told_at_once() {
    let place = Place::new("[server]\nworkers = 0\n").keeps(&FOLLOWED.replace("7/s", "7/x"));
    let report = place.report();
    assert!(
        report.contains("--> gateway.toml:8:11\n") && report.contains("--> gateway.toml.followed:12:8\n"),
        "{report}"
    );
}

#[test]
fn rules_come_from_one_place() {
    let place = Place::new("[[limit]]\nname = \"own\"\nrate = \"1/s\"\n").keeps(FOLLOWED);
    assert_eq!(
        place.report(),
        "\
error: `limit` stands here, and the rules come from elsewhere: follow of [rules]
 --> gateway.toml:7:3
  |
7 | [[limit]]
  |   ^^^^^
  |
  = help: rules come from one place: remove it here, or remove [rules]

gateway.toml: 1 error"
    );
}

#[test]
fn rules_that_are_not_known_are_a_warning() {
    let place = Place::new("");
    let loaded = place.load();
    let expected = format!("the rules are not known yet: there is no {}", place.kept().display());
    assert_eq!(warnings(&loaded), [expected]);
    assert!(loaded.model.lacks_rules() && loaded.model.routes.is_empty());
    assert_eq!(loaded.files, [place.kept()]);
    // Whoever decides about no request does not need them, and may not be allowed to read them.
    let place = place.keeps("nonsense");
    assert_eq!(warnings(&load(&place.file(), Certificates::Unread).unwrap()), [""; 0]);
}

#[test]
fn rules_of_another_address_hold_with_a_warning() {
    let origin = |url: &str| Some(TextOrigin { url: url.to_owned(), etag: None, time: "t".to_owned() });
    let kept = |url| FollowedCopy { text: FOLLOWED.to_owned(), origin: origin(url) }.to_file().unwrap();
    let place = Place::new("").keeps(&kept("https://rules.example/text"));
    assert_eq!(warnings(&place.load()), [""; 0]);
    let place = place.keeps(&kept("https://rules.example/other"));
    let message = "the rules that are kept come from another address, and hold until this one has answered";
    assert_eq!(warnings(&place.load()), [message]);
    assert_eq!(place.load().model.routes.len(), 1);
}

#[test]
fn the_keys_of_the_section_are_judged() {
    let report = |section: &str| {
        let text = format!("{FRAME}[rules]\n{section}");
        match parse(&text, Path::new("/g.toml"), Certificates::Unread) {
            Ok(parsed) => parsed.warnings.to_string(),
            Err(errors) => errors.to_string(),
        }
    };
    assert!(report("every = \"5s\"\n").starts_with("error: [rules] has no `follow`\n"));
    for (section, message) in [
        ("follow = \"ftp://a/b\"", "error: `follow` is no address of HTTP\n"),
        ("follow = \"http://u:hunter2@a/b\"", "error: `follow` holds a user or a password\n"),
        ("follow = \"http://a/b\"", "warning: whoever is on the way can change the rules: they come without TLS\n"),
        (
            "follow = \"http://a/b\"\ntoken_file = \"t\"",
            "warning: whoever is on the way can change the rules, and the token can be read: they come without TLS\n",
        ),
        (
            "follow = \"http://127.0.0.1:1/b\"\nca = \"a.pem\"",
            "error: `ca` has no effect: the rules are not asked for over TLS\n",
        ),
        ("follow = \"https://a/b\"\nevery = \"999ms\"", "error: `every`"),
        ("follow = \"https://a/b\"\nevery = \"61m\"", "error: `every`"),
        ("follow = \"https://a/b?token=hunter2\"\nevri = 1", "error: unknown key `evri` in [rules]\n"),
        ("folow = \"https://a/b?token=hunter2\"", "error: unknown key `folow` in [rules]\n"),
    ] {
        let report = report(section);
        assert!(report.starts_with(message) && !report.contains("hunter2"), "{section}: {report}");
    }
    for fine in ["https://a/b", "http://localhost/b", "http://[::1]:9/b", "http://127.7.0.1/b"] {
        assert_eq!(report(&format!("follow = \"{fine}\"\n")), "", "{fine}");
    }
}

#[test]
fn a_token_is_a_line_and_no_report_shows_it() {
    let place = Place::new("token_file = \"token\"\n").keeps(FOLLOWED);
    let token = place.0.path().join("token");
    assert!(place.report().starts_with("error: `token_file` = \"token\" cannot be used: there is no such file\n"));
    for wrong in ["", "\n", "hunter2 hunter3\n", "hunter2\nhunter3\n"] {
        fs::write(&token, wrong).unwrap();
        let report = place.report();
        assert!(report.starts_with("error: `token_file` = \"token\" holds no token\n"), "{report}");
        assert!(!report.contains("hunter"), "{report}");
    }
    for right in ["s3cret", "s3cret\n", "s3cret\r\n"] {
        fs::write(&token, right).unwrap();
        assert_eq!(place.load().model.follow.unwrap().token(), Ok(Some("s3cret".into())));
    }
    let follow = place.load().model.follow.unwrap();
    fs::write(&token, "a b").unwrap();
    assert!(follow.token().unwrap_err().ends_with("`sluicegate token` makes one"));
    fs::remove_file(&token).unwrap();
    assert!(follow.token().unwrap_err().contains("cannot be read: No such file"));
}

#[test]
fn a_kept_file_that_is_no_text_is_told() {
    let place = Place::new("");
    fs::write(place.kept(), b"\xff").unwrap();
    let report = place.report();
    assert!(report.starts_with("error: the rules that are kept in gateway.toml.followed cannot be read: "), "{report}");
    fs::write(place.kept(), "#".repeat(2 << 20)).unwrap();
    assert!(place.report().contains("cannot be read: it is larger than 1 MiB"));
    fs::remove_file(place.kept()).unwrap();
    fs::create_dir(place.kept()).unwrap();
    assert!(place.report().contains("cannot be read: it is not a regular file"));
}

#[test]
fn the_kept_text_does_not_replace_the_configuration() {
    for same in ["gateway.toml", "./gateway.toml", "link"] {
        let place = Place::new(&format!("kept_file = \"{same}\"\n"));
        std::os::unix::fs::symlink("gateway.toml", place.0.path().join("link")).unwrap();
        let report = place.report();
        assert!(report.starts_with("error: `kept_file` is this file, which it would replace\n"), "{same}: {report}");
    }
}

/// A text with some of it in the place of another part.
fn damaged(text: &str, (at, length, garbage): &(usize, usize, String)) -> String {
    let at = at % (text.len() + 1);
    let end = (at + length).min(text.len());
    [&text[..at], garbage, &text[end..]].concat()
}

proptest! {
    #[test]
    fn whatever_two_texts_say_mistakes_have_places_in_them(
        of_file in (0..1_000_usize, 0..9_usize, "[a-z\\[\\]=\"'\n {}é]{0,9}"),
        of_source in (0..1_000_usize, 0..40_usize, "[a-z\\[\\]=\"'\n {}é]{0,9}"),
        is_whole: bool,
    ) {
        let place = Place::new("");
        let own = fs::read_to_string(place.file()).unwrap();
        let own = if is_whole { own } else { damaged(&own, &of_file) };
        fs::write(place.file(), &own).unwrap();
        let text = damaged(FOLLOWED, &of_source);
        let candidate = super::Candidate { text: text.clone(), from: "source".to_owned() };
        if let Err(super::LoadError::Invalid { errors, .. }) =
            load_following(&candidate, &place.file(), LENIENT, &KnownPlans::default())
        {
            for found in errors.diagnostics() {
                let named = if found.file.as_deref() == Some(Path::new("source")) { &text } else { &own };
                let lines = named.split('\n').count();
                prop_assert!(found.place.is_none_or(|place| place.line <= lines), "{found:?}\n{own}\n---\n{text}");
            }
        }
    }

    #[test]
    fn a_kept_text_comes_back_as_it_was(text in "(.|\n|#: followed \\{\\}){0,60}", etag in proptest::option::of(".{0,9}")) {
        let place = Place::new("");
        let origin = TextOrigin { url: "https://a/b\n".into(), etag, time: "2026-01-01T00:00:00Z".into() };
        let kept = FollowedCopy { text, origin: Some(origin) };
        fs::write(place.kept(), kept.to_file().unwrap()).unwrap();
        prop_assert_eq!(FollowedCopy::read(&place.kept()).unwrap(), Some(kept));
    }
}

#[test]
fn routes_that_a_listener_decides_are_looked_for_once_the_rules_are_there() {
    let deciding = |route: &str| {
        Place::new(&format!(
            "[[listener]]\naddress = \"127.0.0.1:9080\"\ndecides = \"auth\"\ndescribed_by = \"forwarded\"\nroutes = [\"{route}\"]\n"
        ))
    };
    let unknown = deciding("all").load();
    assert!(warnings(&unknown).iter().any(|warning| warning.starts_with("the rules are not known yet")));
    assert!(deciding("all").keeps(FOLLOWED).load().model.decides());
    let report = deciding("none").keeps(FOLLOWED).report();
    assert!(report.contains("there is no route \"none\""), "{report}");
}
