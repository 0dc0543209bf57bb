//! The rate fields of limits with a burst: what is left is never above the quota.

use crate::support::{Gateway, get};

/// `RateLimit-Policy` and `RateLimit` of the first response.
fn fields(limit: &str) -> (String, String) {
    let gateway = Gateway::start(&format!(
        "[[limit]]\nname = \"x\"\nkey = \"client-ip\"\n{limit}\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"x\"]\n"
    ));
    let answer = get(gateway.address(), "/");
    let field = |name: &str| answer.header(name).unwrap().to_owned();
    (field("ratelimit-policy"), field("ratelimit"))
}

#[test]
fn a_quota_is_of_as_many_windows_as_a_burst_takes() {
    for (limit, policy, left) in [
        ("algorithm = \"token-bucket\"\nrate = \"5/s\"\nburst = 10", "\"x\";q=10;w=2", "\"x\";r=9;t=1"),
        ("algorithm = \"gcra\"\nrate = \"5/s\"\nburst = 10", "\"x\";q=10;w=2", "\"x\";r=9;t=1"),
        // The pace stays that of the rate.
        ("algorithm = \"token-bucket\"\nrate = \"5/s\"\nburst = 7", "\"x\";q=10;w=2", "\"x\";r=6;t=1"),
        // What holds no more than its rate is as before.
        ("algorithm = \"token-bucket\"\nrate = \"5/s\"", "\"x\";q=5;w=1", "\"x\";r=4;t=1"),
        ("algorithm = \"token-bucket\"\nrate = \"5/s\"\nburst = 2", "\"x\";q=5;w=1", "\"x\";r=1;t=1"),
        ("rate = \"5/s\"", "\"x\";q=5;w=1", "\"x\";r=4;t=1"),
    ] {
        assert_eq!(fields(limit), (policy.to_owned(), left.to_owned()), "{limit}");
    }
}
