//! `sluicegate overload`: the sensors of the gateway that runs, and how far its adaptive limits are scaled.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::{AdminArguments, Gateway, Request};
use super::running;
use super::tell::{tell, tell_again};
use crate::time::Span;

/// Arguments of `overload`.
#[derive(Debug, clap::Args)]
pub struct OverloadArguments {
    #[command(subcommand)]
    change: Option<OverloadCommand>,
    /// Look again each second, until interrupted.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    admin: AdminArguments,
    /// As the admin interface answers it.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum OverloadCommand {
    /// Scale adaptive limits by hand; sensors do not move the scale meanwhile.
    Set {
        /// The share of their numbers that they have, such as 60%.
        #[arg(value_parser = percent)]
        scale: u32,
        /// How long; without it until `sluicegate overload clear`, or the process ends.
        #[arg(long = "for", value_name = "TIME", value_parser = str::parse::<Span>)]
        length: Option<Span>,
    },
    /// Let the sensors move the scale again.
    Clear,
}

pub const EXAMPLES: &str = "Examples:
  sluicegate overload
  sluicegate overload --watch
  sluicegate overload set 60% --for 10m
  sluicegate overload clear";

#[derive(Debug, Deserialize)]
struct OverloadAnswer {
    scale_percent: f64,
    by_hand: bool,
    floor_percent: u32,
    adaptive_limits: usize,
    shed_percent: ShedRow,
    sensors: Vec<SensorRow>,
}

#[derive(Debug, Deserialize)]
struct ShedRow {
    low: f64,
    normal: f64,
}

#[derive(Debug, Deserialize)]
struct SensorRow {
    sensor: String,
    value: Option<f64>,
    above: f64,
    percent: u64,
    fault: Option<String>,
}

/// Shows how the gateway stands, or changes it. Exit 1: the gateway cannot be asked, or has no `[overload]`.
pub fn run(config: &Path, arguments: &OverloadArguments) -> ExitCode {
    let gateway = match Gateway::of(&arguments.admin, || running::model(config), config) {
        Ok(gateway) => gateway,
        Err(error) => return tell(Err(error)),
    };
    let ask = |method, body: Option<Value>| {
        let body = body.map(|body| body.to_string());
        let body = body.as_deref().map(|body| ("application/json", body));
        let answer = gateway.ask(&Request { method, target: "/api/v1/overload", body, fields: &[] })?;
        shown(&gateway, &answer, arguments.json)
    };
    match &arguments.change {
        None => tell_again(arguments.watch, || ask("GET", None)),
        Some(OverloadCommand::Clear) => tell(ask("DELETE", None)),
        Some(OverloadCommand::Set { scale, length }) => {
            let length = length.map(|length| length.to_string());
            tell(ask("PUT", Some(json!({ "scale": format!("{scale}%"), "for": length }))))
        }
    }
}

fn shown(gateway: &Gateway, answer: &str, as_json: bool) -> Result<String, String> {
    let value: Value = serde_json::from_str(answer).unwrap_or_default();
    if as_json {
        return Ok(format!("{value:#}\n"));
    }
    let shown = serde_json::from_value::<OverloadAnswer>(value).map(|answer| answer.show());
    shown.map_err(|error| format!("{}: an answer that tells of no pressure: {error}", gateway.shown()))
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number.filter(|number| (1..=100).contains(number)).ok_or_else(|| "a share from 1% to 100%, such as 60%".to_owned())
}

impl OverloadAnswer {
    fn show(&self) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let limits = match self.adaptive_limits {
            0 => "no limit is adaptive".to_owned(),
            1 => "1 adaptive limit".to_owned(),
            many => format!("{many} adaptive limits"),
        };
        let by = if self.by_hand { ", set by hand" } else { "" };
        writeln!(out, "scale {}% of {limits}{by}, floor {}%", self.scale_percent, self.floor_percent)?;
        if self.shed_percent.low > 0.0 {
            let ShedRow { low, normal } = self.shed_percent;
            writeln!(out, "shed {low:.0}% of requests of low priority, {normal:.0}% of normal")?;
        }
        let width = self.sensors.iter().map(|own| own.sensor.len()).max().unwrap_or(0).max(6);
        writeln!(out, "  {:width$}  {:>10}  {:>10}  {:>8}  FAULT", "SENSOR", "VALUE", "ABOVE", "PERCENT")?;
        for own in &self.sensors {
            let value = own.value.map_or_else(|| "-".to_owned(), |value| own.in_unit(value));
            let (above, fault) = (own.in_unit(own.above), own.fault.as_deref().unwrap_or_default());
            let line = format!("  {:width$}  {value:>10}  {above:>10}  {:>7}%  {fault}", own.sensor, own.percent);
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl SensorRow {
    fn in_unit(&self, value: f64) -> String {
        match &*self.sensor {
            "cpu" | "memory" | "cpu_pressure" => format!("{:.0}%", value * 100.0),
            "dead_letters" => format!("{value:.0}/m"),
            _ => format!("{:.0} ms", value * 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sensors_are_shown_in_their_units() {
        let answer = r#"{"scale_percent": 60.0, "by_hand": false, "floor_percent": 20, "adaptive_limits": 2, "worst": "cpu",
            "shed_percent": {"low": 25.4, "normal": 0.0}, "sensors": [
            {"sensor": "cpu", "value": 0.912, "above": 0.85, "percent": 107, "fault": null},
            {"sensor": "response_time:app", "value": null, "above": 0.8, "percent": 0, "fault": null},
            {"sensor": "cpu_pressure", "value": null, "above": 0.3, "percent": 0, "fault": "/proc/pressure/cpu: not found"}]}"#;
        let answer: OverloadAnswer = serde_json::from_str(answer).unwrap();
        let expected = "scale 60% of 2 adaptive limits, floor 20%
shed 25% of requests of low priority, 0% of normal
  SENSOR                  VALUE       ABOVE   PERCENT  FAULT
  cpu                       91%         85%      107%
  response_time:app           -      800 ms        0%
  cpu_pressure                -         30%        0%  /proc/pressure/cpu: not found
";
        assert_eq!(answer.show(), expected);
    }
}
