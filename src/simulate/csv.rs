//! Tables of comma-separated values (RFC 4180), one request a line; no value has a line break in it.

use csv_core::{ReadRecordResult, Reader};

use super::instant::Instants;
use super::json::millis;
use super::logged::{Logged, client};
use super::skipped::SkipReason;

/// The most columns.
const MAX_COLUMNS: usize = 256;

/// The columns of a table.
pub(super) struct CsvColumns {
    columns: Vec<Column>,
    reader: Reader,
    values: Vec<u8>,
    ends: Vec<usize>,
}

/// A column, by the name in the first line.
enum Column {
    Ts,
    Client,
    Method,
    Host,
    Path,
    Query,
    Scheme,
    Status,
    TookMs,
    /// Of no use here.
    Other,
    /// Any other name is that of a header field, with `header:` before it or not.
    Header(String),
}

impl CsvColumns {
    /// The table that begins with this line; `None` if it names no columns that a request needs.
    pub(super) fn begin(line: &str) -> Option<Self> {
        let mut table = Self { columns: Vec::new(), reader: Reader::new(), values: Vec::new(), ends: Vec::new() };
        let names = table.split(line)?;
        let columns = (0..names).map(|at| match table.value(at).trim().to_ascii_lowercase().as_str() {
            "ts" => Column::Ts,
            "client" | "client_ip" => Column::Client,
            "method" => Column::Method,
            "host" => Column::Host,
            "path" | "target" => Column::Path,
            "query" => Column::Query,
            "scheme" => Column::Scheme,
            "status" => Column::Status,
            "took_ms" => Column::TookMs,
            "wait_ms" | "head_ms" => Column::Other,
            name => Column::Header(name.strip_prefix("header:").unwrap_or(name).to_owned()),
        });
        let columns: Vec<Column> = columns.collect();
        let has = |is: fn(&Column) -> bool| columns.iter().any(is);
        let is_request = has(|own| matches!(own, Column::Ts)) && has(|own| matches!(own, Column::Client));
        is_request.then_some(Self { columns, ..table })
    }

    /// Reads a line.
    pub(super) fn read(&mut self, line: &str, instants: &mut Instants, logged: &mut Logged) -> Result<(), SkipReason> {
        let values = self.split(line).ok_or(SkipReason::Broken)?;
        if values > self.columns.len() {
            return Err(SkipReason::Broken);
        }
        let of = |is: fn(&Column) -> bool| {
            let at = self.columns.iter().position(is)?;
            Some(self.value(at)).filter(|value| !value.is_empty())
        };
        let at = of(|own| matches!(own, Column::Ts)).and_then(|text| instants.text(text)).ok_or(SkipReason::NoTime)?;
        logged.start(at, of(|own| matches!(own, Column::Client)).and_then(client).ok_or(SkipReason::NoClient)?);
        for (at, column) in self.columns.iter().enumerate() {
            let value = self.value(at);
            if value.is_empty() {
                continue;
            }
            match column {
                // The query is read last: a path with a query of its own stands before it or after.
                Column::Ts | Column::Client | Column::Query | Column::Other => {}
                Column::Method => logged.set_method(value),
                Column::Host => logged.set_host(value),
                Column::Path => logged.set_target(value),
                Column::Scheme => logged.is_https = value.eq_ignore_ascii_case("https"),
                Column::Status => logged.status = value.parse().unwrap_or_default(),
                Column::TookMs => logged.took = value.parse().ok().and_then(millis),
                Column::Header(name) => logged.add_header(name, value),
            }
        }
        if let Some(query) = of(|own| matches!(own, Column::Query)) {
            logged.set_query(query);
        }
        if logged.has_path() { Ok(()) } else { Err(SkipReason::NoPath) }
    }

    /// Splits a line into its values, and says how many there are.
    fn split(&mut self, line: &str) -> Option<usize> {
        self.reader.reset();
        // An unescaped value is no longer than it was.
        self.values.resize(line.len() + 1, 0);
        self.ends.resize(MAX_COLUMNS, 0);
        let mut input = line.as_bytes();
        let (mut written, mut ended) = (0, 0);
        loop {
            let (values, ends) = (self.values.get_mut(written..)?, self.ends.get_mut(ended..)?);
            let (result, read, wrote, ends) = self.reader.read_record(input, values, ends);
            (input, written, ended) = (input.get(read..)?, written + wrote, ended + ends);
            match result {
                // An empty input is the end of all.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => return Some(ended),
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull | ReadRecordResult::End => return None,
            }
        }
    }

    fn value(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends.get(at - 1).copied().unwrap_or_default() };
        let bytes = self.ends.get(at).and_then(|end| self.values.get(start..*end)).unwrap_or_default();
        // It was cut out of a text at ASCII characters.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::RequestView;
    use crate::time::{Span, Tick};

    fn logged(head: &str, line: &str) -> Result<Logged, SkipReason> {
        let mut logged = Logged::default();
        CsvColumns::begin(head).unwrap().read(line, &mut Instants::default(), &mut logged).map(|()| logged)
    }

    #[test]
    fn columns_stand_in_any_order_and_others_are_header_fields() {
        let own = logged(
            "header:X-Api-Key,path,client,ts,method,took_ms,user-agent,query",
            r#""k,""1""",/x,192.0.2.7,1.25,PUT,3,,a=b"#,
        )
        .unwrap();
        assert_eq!((own.at, own.method(), own.path()), (Tick::from_nanos(1_250_000_000), "PUT", "/x"));
        assert_eq!((own.header("x-api-key"), own.header("user-agent")), (Some(&b"k,\"1\""[..]), None));
        assert_eq!((own.query(), own.took), (Some("a=b"), Some(Span::from_millis(3))));
    }

    #[test]
    fn what_is_no_table_or_no_request_is_said() {
        assert!(CsvColumns::begin("time,client,path").is_none());
        assert!(CsvColumns::begin("ts,ip,path").is_none());
        let head = "ts,client,path";
        for (line, fault) in [
            ("x,::1,/", SkipReason::NoTime),
            ("1", SkipReason::NoClient),
            ("1,::1", SkipReason::NoPath),
            ("1,::1,/,more", SkipReason::Broken),
        ] {
            assert_eq!(logged(head, line).map(|_| ()), Err(fault), "{line}");
        }
        assert!(CsvColumns::begin(&"a,".repeat(300)).is_none());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(head in any::<String>(), line in "[\",a1/ é\r]{0,40}") {
            if let Some(mut table) = CsvColumns::begin(&format!("ts,client,{head}")) {
                let _ = table.read(&line, &mut Instants::default(), &mut Logged::default());
            }
        }
    }
}
