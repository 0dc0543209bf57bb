use std::fmt;

use sluicegate_time::Wall;

/// A certificate that ends within this time is to be renewed: two weeks, because certbot renews at 30 days.
const ENDING_SECS: u64 = 14 * 86_400;

/// From when until when a certificate may be used, both inclusive (RFC 5280, 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    not_before: u64,
    not_after: u64,
}

/// The standing of a certificate at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateStatus {
    /// It is not valid yet.
    Early,
    /// It is valid.
    Valid,
    /// It is valid, for two weeks at most.
    Ending,
    /// It is not valid any more.
    Expired,
}

impl Validity {
    /// Both in seconds since 1970.
    pub fn new(not_before: u64, not_after: u64) -> Self {
        Self { not_before, not_after }
    }

    /// Where the moment stands.
    pub fn at(&self, now: Wall) -> CertificateStatus {
        let now = now.as_secs();
        if now < self.not_before {
            CertificateStatus::Early
        } else if now > self.not_after {
            CertificateStatus::Expired
        } else if self.not_after - now < ENDING_SECS {
            CertificateStatus::Ending
        } else {
            CertificateStatus::Valid
        }
    }

    /// The first moment, as a date.
    pub fn from(&self) -> impl fmt::Display {
        Date(self.not_before)
    }

    /// The last moment, as a date.
    pub fn until(&self) -> impl fmt::Display {
        Date(self.not_after)
    }
}

struct Date(u64);

impl fmt::Display for Date {
    /// `2026-02-01 12:00:00 UTC`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i64::try_from(self.0).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()) {
            Some(time) => write!(f, "{}", time.strftime("%Y-%m-%d %H:%M:%S UTC")),
            None => f.write_str("the year 9999"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    #[test]
    fn a_certificate_begins_ends_and_is_warned_of_two_weeks_before() {
        let validity = Validity::new(1_000, 10_000_000);
        for (seconds, standing) in [
            (0, CertificateStatus::Early),
            (999, CertificateStatus::Early),
            (1_000, CertificateStatus::Valid),
            (10_000_000 - ENDING_SECS, CertificateStatus::Valid),
            (10_000_001 - ENDING_SECS, CertificateStatus::Ending),
            (10_000_000, CertificateStatus::Ending),
            (10_000_001, CertificateStatus::Expired),
        ] {
            assert_eq!(validity.at(Wall::EPOCH + Span::from_secs(seconds)), standing, "{seconds}");
        }
    }

    #[test]
    fn dates_are_in_utc() {
        let validity = Validity::new(1_767_225_600, 253_402_300_799);
        assert_eq!(validity.from().to_string(), "2026-01-01 00:00:00 UTC");
        assert!(validity.until().to_string().contains("9999"), "{}", validity.until());
    }
}
