use super::StoreError;
use super::error::shown;

words! {
    /// The maker of a store.
    pub enum Product default Redis {
        /// Redis, and what calls itself so.
        Redis = "Redis",
        /// Valkey.
        Valkey = "Valkey",
    }
}

/// A store, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreServer {
    /// Its maker.
    pub product: Product,
    /// Its version, as it writes it.
    pub version: String,
    /// How it makes room when its memory is full, if it then removes keys: counts would be lost, and budget granted anew.
    pub evicts: Option<String>,
}

impl StoreServer {
    /// Reads the section `server` of `INFO`.
    pub(super) fn read(info: &str) -> Result<Self, StoreError> {
        let valkey = field(info, "valkey_version").map(|version| (Product::Valkey, version));
        let known = valkey.or_else(|| field(info, "redis_version").map(|version| (Product::Redis, version)));
        let Some((product, version)) = known else {
            return Err(StoreError::Unexpected { said: shown(info.as_bytes()) });
        };
        if field(info, "redis_mode") == Some("sentinel") {
            let port = field(info, "tcp_port").unwrap_or("unknown");
            return Err(StoreError::Sentinel { port: shown(port.as_bytes()) });
        }
        let (least, written) = match product {
            Product::Redis => ([6, 2], "6.2"),
            Product::Valkey => ([7, 2], "7.2"),
        };
        let version = shown(version.as_bytes());
        let numbers: Vec<u32> = version.split('.').take(2).map_while(|number| number.parse().ok()).collect();
        if numbers.as_slice() < least.as_slice() {
            return Err(StoreError::TooOld { product: product.word(), version, least: written });
        }
        Ok(Self { product, version, evicts: None })
    }

    /// Reads the section `memory`.
    pub(super) fn read_memory(&mut self, info: &str) {
        let has_bound = field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
        let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction");
        self.evicts = policy.filter(|_| has_bound).map(|policy| shown(policy.as_bytes()));
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_stores_are_refused_by_their_own_version() {
        let read = |info: &str| match StoreServer::read(info) {
            Ok(server) => format!("{} {}", server.product.word(), server.version),
            Err(error) => error.to_string(),
        };
        assert_eq!(read("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"), "Redis 7.0.15");
        assert_eq!(read("redis_version:6.2.0\r\n"), "Redis 6.2.0");
        assert_eq!(read("redis_version:10.0.1\r\n"), "Redis 10.0.1");
        assert_eq!(read("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n"), "Valkey 8.1.0");
        assert_eq!(read("redis_version:6.0.16\r\n"), "the store is Redis 6.0.16: Redis 6.2 or later is needed");
        for other in ["redis_version:\r\n", "redis_version:x.y\r\n"] {
            assert!(read(other).contains("or later is needed"), "{other}");
        }
        assert!(read("# Server\r\nother:1\r\n").contains("answered what it should not"));
    }

    #[test]
    fn a_sentinel_is_none() {
        let told = StoreServer::read("redis_version:7.0.15\r\nredis_mode:sentinel\r\ntcp_port:26379\r\n")
            .unwrap_err()
            .to_string();
        assert!(told.starts_with("a Sentinel answers there (port 26379), which holds no keys"), "{told}");
    }

    #[test]
    fn a_store_that_evicts_is_known() {
        let evicts = |info: &str| {
            let mut server = StoreServer::default();
            server.read_memory(info);
            server.evicts
        };
        assert_eq!(evicts("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), None, "it is never full");
        assert_eq!(evicts("maxmemory:1000\r\nmaxmemory_policy:noeviction\r\n"), None);
        assert_eq!(evicts("maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n").as_deref(), Some("allkeys-lru"));
        assert_eq!(evicts(""), None);
    }
}
