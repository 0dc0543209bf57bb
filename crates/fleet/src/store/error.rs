use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};

use super::redirect::Redirect;

/// The most that an error shows of what a store has said.
const MAX_SAID: usize = 120;

/// Why a store has not done what it was asked, and how to mend that.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no connection to it.
    Unreachable(Arc<io::Error>),
    /// It does not answer.
    Silent {
        /// How long it was waited for.
        wait: Duration,
    },
    /// It says nothing where TLS is begun.
    SilentToTls {
        /// How long it was waited for.
        wait: Duration,
    },
    /// It has closed the connection, or the connection broke. The commands may have been done.
    Closed(Arc<io::Error>),
    /// The same before its first answer, over a connection without TLS.
    ClosedAtOnce(Arc<io::Error>),
    /// There is no TLS with it: its certificate is refused, or nothing could be agreed on.
    NoTls {
        /// Why, and how to mend it.
        reason: Arc<str>,
    },
    /// It does not speak TLS there.
    SpeaksNoTls,
    /// It speaks TLS there, and was spoken to without.
    SpeaksTls,
    /// It wants a certificate of the gateway.
    WantsCertificate,
    /// The peer there does not speak the protocol.
    NotRedis {
        /// How its answer begins.
        said: String,
    },
    /// It wants a password, and none is given.
    NoPassword,
    /// It knows no such user and password.
    WrongPassword,
    /// The user may not do this.
    NotPermitted {
        /// The store's own words.
        said: String,
    },
    /// It has no database of this number.
    NoDatabase {
        /// The number.
        database: u32,
    },
    /// It is too old for the scripts.
    TooOld {
        /// The product: Redis or Valkey.
        product: &'static str,
        /// Its version.
        version: String,
        /// The least that will do.
        least: &'static str,
    },
    /// It is a replica that takes no writes.
    ReadOnly,
    /// It is a Sentinel, which holds no keys.
    Sentinel {
        /// Its port, as it says itself.
        port: String,
    },
    /// It has no memory left.
    Full,
    /// It cannot save to its disk, and so takes no writes.
    CannotSave,
    /// It still loads its data.
    Loading,
    /// A script of somebody's runs for too long.
    Busy,
    /// It is a node of a cluster, and another one has the key.
    Moved {
        /// The store's own words.
        said: String,
        /// The other one, as far as it could be read.
        redirect: Option<Redirect>,
    },
    /// It is a node of a cluster that is down.
    ClusterDown {
        /// The store's own words.
        said: String,
    },
    /// It is no node of a cluster.
    NoCluster,
    /// It is no Sentinel.
    NotSentinel,
    /// No Sentinel answers.
    NoSentinel {
        /// Why one of them does not.
        reason: Arc<str>,
    },
    /// The Sentinels watch no primary of this name.
    NoPrimary {
        /// The name.
        name: String,
    },
    /// The key holds a value of another type, which is not ours.
    OtherType,
    /// It has answered what no script of ours says.
    Unexpected {
        /// The answer.
        said: String,
    },
    /// Any other error.
    Refused {
        /// The store's own words.
        said: String,
    },
}

impl StoreError {
    /// It has said nothing for so long.
    pub(crate) fn silent(wait: Duration) -> Self {
        Self::Silent { wait }
    }

    /// Its answer is none of a script of ours.
    pub(crate) fn no_answer() -> Self {
        Self::Unexpected { said: "other numbers".to_owned() }
    }

    /// Whether only a new connection can help.
    pub fn needs_connection(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::Closed(_)
                | Self::ClosedAtOnce(_)
                | Self::NoTls { .. }
                | Self::SpeaksNoTls
                | Self::SpeaksTls
                | Self::WantsCertificate
                | Self::NotRedis { .. }
                | Self::NoPassword
                | Self::WrongPassword
                | Self::NoDatabase { .. }
                | Self::TooOld { .. }
                | Self::ReadOnly
                | Self::Sentinel { .. }
        )
    }

    /// Whether this is about one key alone, and the store works.
    pub fn is_of_one_key(&self) -> bool {
        matches!(self, Self::OtherType)
    }

    /// The error that the store has given instead of a reply. The code may stand in the middle: older stores wrap the error of a
    /// script's command.
    pub(super) fn of_server(error: &ServerError) -> Self {
        let (code, details) = (error.code(), error.details().unwrap_or_default());
        let text = if code == "ERR" { details.to_owned() } else { format!("{code} {details}") };
        let has =
            |word: &str| code == word || details.split(|c: char| !c.is_ascii_alphanumeric()).any(|own| own == word);
        let said = shown(text.as_bytes());
        match code {
            "NOAUTH" => Self::NoPassword,
            "WRONGPASS" => Self::WrongPassword,
            "NOPERM" => Self::NotPermitted { said },
            "MOVED" | "ASK" => Self::Moved { said, redirect: Redirect::of(error) },
            "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => Self::ClusterDown { said },
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            _ if has("WRONGTYPE") => Self::OtherType,
            _ if has("OOM") => Self::Full,
            _ if has("READONLY") => Self::ReadOnly,
            _ if has("MISCONF") => Self::CannotSave,
            _ if has("NOPERM")
                || details.contains("ACL failure")
                || details.contains("The user executing the script") =>
            {
                Self::NotPermitted { said }
            }
            _ if details.starts_with("invalid password") => Self::WrongPassword,
            _ if details.contains("without any password configured") => Self::WrongPassword,
            _ => Self::Refused { said },
        }
    }

    /// Why an exchange has failed, `fault` being what the connection knows of the peer.
    pub(super) fn of_exchange(error: &RedisError, fault: Option<&Self>) -> Self {
        if let Some(fault) = fault {
            return fault.clone();
        }
        match error.kind() {
            ErrorKind::Parse => Self::Unexpected { said: shown(error.to_string().as_bytes()) },
            _ => Self::Closed(Arc::new(io::Error::other(error.clone()))),
        }
    }

    pub(super) fn unexpected(value: &redis::Value) -> Self {
        // Not more than is shown, of however much there is.
        let said = match value {
            redis::Value::BulkString(bytes) => shown(bytes),
            redis::Value::SimpleString(text) => shown(text.as_bytes()),
            redis::Value::Array(values) => format!("a list of {}", values.len()),
            redis::Value::Int(number) => number.to_string(),
            redis::Value::Nil => "nothing".to_owned(),
            _ => "a value of another type".to_owned(),
        };
        Self::Unexpected { said }
    }
}

/// The beginning of a text from outside, without control characters.
pub(super) fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MAX_SAID).unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "the store cannot be reached ({error}): check that it runs, and the address in [fleet] store")
            }
            Self::Silent { wait } => write!(
                f,
                "the store has not answered within {wait:?}: check its load and the network to it; [fleet] deadline says how \
                 long an answer may take"
            ),
            Self::SilentToTls { wait } => write!(
                f,
                "the store has not answered within {wait:?} where TLS begins: let [fleet] store name its port for TLS \
                 (tls-port), or begin with redis://; else check the network to it"
            ),
            Self::Closed(error) => {
                write!(f, "the connection to the store has ended ({error}): check that the store runs")
            }
            Self::ClosedAtOnce(error) => write!(
                f,
                "the store has closed the connection before its first answer ({error}): if that port is for TLS, let \
                 [fleet] store begin with rediss://, else see the store's log"
            ),
            Self::NoTls { reason } => write!(f, "there is no TLS with the store of [fleet]: {reason}"),
            Self::SpeaksNoTls => write!(
                f,
                "the store does not speak TLS on this port: let [fleet] store name its port for TLS (tls-port), or begin \
                 with redis://"
            ),
            Self::SpeaksTls => {
                write!(f, "the store speaks TLS on this port: let [fleet] store begin with rediss://")
            }
            Self::WantsCertificate => write!(
                f,
                "the store wants a certificate of the gateway, which has none: set tls-auth-clients no in the store, and \
                 let it ask for a password"
            ),
            Self::NotRedis { said } => {
                write!(f, "no Redis answers there, but {said:?}: let [fleet] store name a Redis or Valkey")
            }
            answered => answered.fmt_answered(f),
        }
    }
}

impl StoreError {
    /// [`Display`](fmt::Display) of what a store has answered.
    fn fmt_answered(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPassword => {
                write!(f, "the store wants a password: set password_file in [fleet], or SLUICEGATE_FLEET_PASSWORD")
            }
            Self::WrongPassword => {
                write!(
                    f,
                    "the store refuses the user or the password: check username and password_file in [fleet], and SLUICEGATE_FLEET_PASSWORD, which wins"
                )
            }
            Self::NotPermitted { said } => write!(
                f,
                "the store's user may not do this ({said}): allow it +@scripting +@hash +@sortedset +@keyspace +info +time +select \
                 on the keys of [fleet] prefix"
            ),
            Self::NoDatabase { database } => {
                write!(f, "the store has no database {database}: use a lower number at the end of [fleet] store")
            }
            Self::TooOld { product, version, least } => {
                write!(f, "the store is {product} {version}: {product} {least} or later is needed")
            }
            Self::ReadOnly => {
                write!(f, "the store is a replica that takes no writes: let [fleet] store name its primary")
            }
            Self::Sentinel { port } => write!(
                f,
                "a Sentinel answers there (port {port}), which holds no keys: let [fleet] store begin with redis-sentinel:// \
                 and end with the name of the primary that it watches"
            ),
            Self::Full => write!(f, "the store has no memory left: raise its maxmemory, or remove what else it holds"),
            Self::CannotSave => {
                write!(f, "the store cannot save to its disk and takes no writes: see its log, mend its disk")
            }
            Self::Loading => write!(f, "the store still loads its data: it answers when it has done so"),
            Self::Busy => write!(f, "a script that is not ours runs in the store for too long: SCRIPT KILL ends it"),
            Self::OtherType => write!(
                f,
                "a key of ours holds another type in the store: something else writes under [fleet] prefix, delete the \
                 key or use another prefix"
            ),
            Self::Unexpected { said } => {
                write!(
                    f,
                    "the store has answered what it should not ({said:?}): is a proxy between, or another product?"
                )
            }
            Self::Refused { said } => write!(f, "the store has refused: {said}"),
            several => several.fmt_several(f),
        }
    }

    /// The same of a store that is several servers.
    fn fmt_several(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { said, .. } => {
                write!(f, "the store is a node of a cluster ({said}): let [fleet] store begin with redis-cluster://")
            }
            Self::ClusterDown { said } => write!(
                f,
                "the cluster of the store is down ({said}): see CLUSTER INFO; with cluster-require-full-coverage no, the keys \
                 of masters that live are served on"
            ),
            Self::NoCluster => {
                write!(
                    f,
                    "the store is no node of a cluster: let [fleet] store begin with redis:// or redis-sentinel://"
                )
            }
            Self::NotSentinel => write!(
                f,
                "a store answers there, and no Sentinel: let [fleet] store name the port of Sentinels (26379), or begin with \
                 redis://"
            ),
            Self::NoSentinel { reason } => write!(f, "no Sentinel of [fleet] store answers, one of them so: {reason}"),
            Self::NoPrimary { name } => write!(
                f,
                "the Sentinels of [fleet] store watch no primary {name:?}: use the name of their `sentinel monitor`"
            ),
            // The connection's own are told above.
            other => write!(f, "{other:?}"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable(error) | Self::Closed(error) | Self::ClosedAtOnce(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a store says it, without the dash.
    fn said(line: &str) -> String {
        let bytes = format!("-{line}\r\n");
        match redis::parse_redis_value(bytes.as_bytes()).unwrap() {
            redis::Value::ServerError(error) => {
                let error = StoreError::of_server(&error);
                format!("{error:?}").split([' ', '{', '(']).next().unwrap().to_owned()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_refusal_is_told_from_the_others() {
        for (line, error) in [
            ("NOAUTH Authentication required.", "NoPassword"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "WrongPassword"),
            ("ERR invalid password", "WrongPassword"),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure?",
                "WrongPassword",
            ),
            ("NOPERM this user has no permissions to run the 'evalsha' command", "NotPermitted"),
            (
                "ERR The user executing the script can't run this command or subcommand script: c5, on @user_script:80.",
                "NotPermitted",
            ),
            ("ERR ACL failure in script: this user has no permissions to run the 'hset' command", "NotPermitted"),
            ("READONLY You can't write against a read only replica.", "ReadOnly"),
            ("READONLY You can't write against a read only replica. script: c5, on @user_script:80.", "ReadOnly"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "Full"),
            (
                "ERR Error running script (call to f_c5): @user_script:9: -OOM command not allowed when used memory",
                "Full",
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", "OtherType"),
            ("ERR Error running script (call to f_c5): @user_script:9: WRONGTYPE Operation against a key", "OtherType"),
            ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to", "CannotSave"),
            ("LOADING Redis is loading the dataset in memory", "Loading"),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "Busy"),
            ("MOVED 3999 127.0.0.1:6381", "Moved"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "ClusterDown"),
            ("CLUSTERDOWN Hash slot not served", "ClusterDown"),
            ("ERR unknown command 'EVALSHA'", "Refused"),
            ("", "Refused"),
        ] {
            assert_eq!(said(line), error, "{line}");
        }
    }

    #[test]
    fn what_is_shown_of_the_outside_is_short_and_has_no_controls() {
        assert_eq!(shown(b"HTTP/1.1 400 Bad\r\nx: \x1b[31m\xff"), "HTTP/1.1 400 Bad  x:  [31m\u{fffd}");
        assert_eq!(shown(&[b'a'; 5_000]).len(), MAX_SAID);
    }
}
