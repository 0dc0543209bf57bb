//! Looks after pressure once a second, in a thread of its own, where the file has `[overload]`: reads the sensors, scales adaptive
//! limits, and says which requests are shed.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::component::Component;
use super::error::BuildError;
use super::family::family;
use super::live::LiveLimits;
use crate::config::{Model, Overload, ResponseTime};
use crate::limiter::Limit;
use crate::overload::{
    FULL_SCALE, LimitActivity, LimitScale, MachineSensors, PriorityCounts, ScaleState, ScaleTerms, SensorError,
    SensorReading, Shedding,
};
use crate::proxy::{OverloadState, ResponseSamples, SAMPLE_WINDOW, Snapshot};
use crate::telemetry::{Registration, Registry};
use crate::time::{Clock, Span, Tick};

/// The scale that the one finds is the one that the other takes.
const _: () = assert!(FULL_SCALE == crate::limiter::FULL_SCALE);

/// How often sensors are read.
const EVERY: Duration = Duration::from_secs(1);
/// Where a sensor of a longer window is above, so much of it says whether it still is.
const RECENT: Span = Span::from_secs(2);
/// A change of the scale by so many basis points is told.
const TOLD: u32 = 1_000;

family!(
    SCALE,
    Gauge,
    "sluicegate_overload_scale",
    "The share to which adaptive limits are scaled by [overload], in percent.",
    []
);
family!(
    SHED,
    Gauge,
    "sluicegate_overload_shed",
    "The share of requests for servers that is shed by [overload], in percent, by the priority of their routes.",
    ["priority"]
);
family!(
    SENSOR,
    Gauge,
    "sluicegate_overload_sensor",
    "A sensor of [overload], in percent of its threshold; 0 where it has no value.",
    ["sensor"]
);

/// The thread, where there is one. It ends when this is dropped.
pub struct OverloadControl {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    registered: Vec<Registration>,
    clock: Clock,
    workers: usize,
    is_running: bool,
}

struct Shared {
    watch: Mutex<Watch>,
    changed: Condvar,
}

#[derive(Default)]
struct Watch {
    /// `None`: the file has no `[overload]`.
    pressure: Option<Pressure>,
    is_over: bool,
}

/// All that the thread looks after.
struct Pressure {
    spec: Overload,
    state: Arc<OverloadState>,
    limits: Vec<Arc<Limit>>,
    machine: Option<MachineSensors>,
    sensors: Vec<Sensor>,
    scale: LimitScale,
    shedding: Shedding,
    arrived: PriorityCounts,
    last: ScaleState,
    told: u32,
}

struct Sensor {
    name: String,
    kind: SensorKind,
    above: f64,
    value: Option<f64>,
    /// Why it is off; `None`: it is read.
    fault: Option<String>,
}

enum SensorKind {
    Cpu,
    Memory,
    CpuPressure,
    ResponseTime { samples: Arc<ResponseSamples>, quantile: f64 },
    Failures,
}

/// Asks how it stands, and changes that. Each answer is `None` where there is no `[overload]`.
pub struct OverloadHandle {
    shared: Arc<Shared>,
    clock: Clock,
}

/// The part of a new generation that is looked after.
pub struct NewPressure {
    spec: Overload,
    state: Arc<OverloadState>,
    responses: Vec<(ResponseTime, Arc<ResponseSamples>)>,
    /// All of them: which ones are adaptive is known when they have their new numbers.
    limits: Vec<Arc<Limit>>,
}

impl OverloadControl {
    /// Without a thread: it starts with the first generation that needs one.
    pub fn new(registry: &Arc<Registry>, clock: Clock, workers: usize) -> Self {
        let shared = Arc::new(Shared { watch: Mutex::default(), changed: Condvar::new() });
        Self { shared, registry: Arc::clone(registry), registered: Vec::new(), clock, workers, is_running: false }
    }

    /// The limits are these: some come and go without a reload, those of keys that have numbers of their own.
    pub fn renew(&self, limits: &LiveLimits) {
        if let Some(pressure) = &mut self.shared.watch().pressure {
            pressure.limits = adaptive(limits.values().map(|(limit, _)| limit));
            pressure.scale_limits();
        }
    }

    /// For the code that asks about it, while a reload may go on.
    pub fn handle(&self) -> OverloadHandle {
        OverloadHandle { shared: Arc::clone(&self.shared), clock: self.clock.clone() }
    }

    fn start(&mut self) -> io::Result<()> {
        let (shared, clock) = (Arc::clone(&self.shared), self.clock.clone());
        thread::Builder::new().name("overload".into()).spawn(move || shared.look_after(&clock))?;
        self.is_running = true;
        Ok(())
    }

    /// The figures, which are there only with the section.
    fn register(&mut self) {
        let watch = self.shared.watch();
        let Some(pressure) = &watch.pressure else { return };
        let state = Arc::clone(&pressure.state);
        self.registered.push(self.registry.observe_with(&SCALE, &[], move || state.scale_percent() as u64));
        for (priority, begins) in [("low", 0.0), ("normal", 1.0)] {
            let state = Arc::clone(&pressure.state);
            let share = move || ((state.shed_level().value() - begins).clamp(0.0, 1.0) * 100.0).round() as u64;
            self.registered.push(self.registry.observe_with(&SHED, &[priority], share));
        }
        for (place, sensor) in pressure.sensors.iter().enumerate() {
            let shared = Arc::clone(&self.shared);
            let excess = move || shared.watch().pressure.as_ref().map_or(0, |pressure| pressure.percent_of(place));
            self.registered.push(self.registry.observe_with(&SENSOR, &[&sensor.name], excess));
        }
    }
}

impl OverloadHandle {
    /// How it stands.
    pub fn report(&self) -> Option<Value> {
        self.shared.watch().pressure.as_ref().map(Pressure::report)
    }

    /// Scales limits to this many percent, for so long or until [`clear`](Self::clear).
    pub fn set(&self, percent: u32, length: Option<Span>) -> Option<Value> {
        let now = self.clock.now();
        self.change(|scale| scale.set_by_hand(percent, length.map(|length| now + length)))
    }

    /// Sensors move the scale again.
    pub fn clear(&self) -> Option<Value> {
        self.change(LimitScale::clear)
    }

    fn change(&self, change: impl FnOnce(&mut LimitScale)) -> Option<Value> {
        let mut watch = self.shared.watch();
        let pressure = watch.pressure.as_mut()?;
        change(&mut pressure.scale);
        pressure.apply(self.clock.now());
        Some(pressure.report())
    }
}

impl Drop for OverloadControl {
    fn drop(&mut self) {
        self.shared.watch().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Component for OverloadControl {
    type Needs<'n> = (&'n Snapshot, &'n LiveLimits);
    type Staged = Option<NewPressure>;

    fn stage(
        &self,
        model: &Arc<Model>,
        (snapshot, limits): (&Snapshot, &LiveLimits),
    ) -> Result<Option<NewPressure>, BuildError> {
        let (Some(spec), Some(state)) = (&model.overload, &snapshot.overload) else { return Ok(None) };
        let timed = |own: &ResponseTime| Some((own.clone(), snapshot.upstream(&own.upstream)?.responses.clone()?));
        let responses = spec.response_time.iter().filter_map(timed).collect();
        let (state, limits) = (Arc::clone(state), limits.values().map(|(limit, _)| Arc::clone(limit)).collect());
        Ok(Some(NewPressure { spec: spec.clone(), state, responses, limits }))
    }

    fn commit(&mut self, staged: Option<NewPressure>) {
        self.registered.clear();
        let mut watch = self.shared.watch();
        let old = watch.pressure.take();
        let Some(new) = staged else {
            if let Some(old) = old {
                old.end();
            }
            return;
        };
        watch.pressure = Some(Pressure::new(new, old, self.workers, self.clock.now()));
        drop(watch);
        self.register();
        if !self.is_running
            && let Err(error) = self.start()
        {
            tracing::error!(%error, "[overload] is not looked after: its thread cannot be started");
        }
    }
}

impl Shared {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_after(&self, clock: &Clock) {
        let mut watch = self.watch();
        while !watch.is_over {
            let waited = self.changed.wait_timeout(watch, EVERY);
            (watch, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(pressure) = &mut watch.pressure {
                let now = clock.now();
                pressure.read(now);
                pressure.apply(now);
            }
        }
    }
}

impl Pressure {
    fn new(new: NewPressure, old: Option<Self>, workers: usize, now: Tick) -> Self {
        let NewPressure { spec, state, responses, limits } = new;
        let terms = ScaleTerms { floor_percent: spec.floor, step_percent: spec.step };
        state.count_failures(spec.dead_letters.is_some());
        let limits = adaptive(limits.iter());
        let sensors = sensors(&spec, responses);
        let rest = ScaleState { basis_points: FULL_SCALE, worst: None, needs_shedding: false, is_by_hand: false };
        let mut own = match old {
            Some(old) => Self { spec, state, limits, sensors, ..old },
            None => Self {
                arrived: state.arrived(),
                spec,
                state,
                limits,
                machine: None,
                sensors,
                scale: LimitScale::new(terms),
                shedding: Shedding::new(),
                last: rest,
                told: FULL_SCALE,
            },
        };
        own.scale.set_terms(terms);
        // It names a sensor by its place.
        own.last.worst = None;
        own.start_machine(workers, now);
        own.scale_limits();
        own
    }

    /// Reads the sensors of the machine once. One that cannot be read is off until the next reload.
    fn start_machine(&mut self, workers: usize, now: Tick) {
        let made = MachineSensors::new(Path::new("/"), u32::try_from(workers).unwrap_or(u32::MAX));
        let (mut machine, failed) = match made {
            Ok(machine) => (Some(machine), None),
            Err(error) => (None, Some(error)),
        };
        for sensor in self.sensors.iter_mut().filter(|sensor| sensor.is_of_machine()) {
            let fault = match (&mut machine, &failed) {
                (Some(machine), _) => sensor.read_machine(machine, now).err().map(|error| told(&error)),
                (None, error) => error.as_ref().map(told),
            };
            if let Some(fault) = fault {
                sensor.fail(fault);
            }
        }
        self.machine = machine;
    }

    fn read(&mut self, now: Tick) {
        for sensor in self.sensors.iter_mut().filter(|sensor| sensor.fault.is_none()) {
            match &mut self.machine {
                Some(machine) if sensor.is_of_machine() => match sensor.read_machine(machine, now) {
                    Ok(Some(value)) => sensor.value = Some(value),
                    // The one before holds.
                    Ok(None) => {}
                    Err(error) => sensor.fail(told(&error)),
                },
                _ => sensor.value = sensor.read_workers(&self.state, SAMPLE_WINDOW, now),
            }
        }
    }

    /// Moves the scale and what is shed by the last readings.
    fn apply(&mut self, now: Tick) {
        let state = &self.state;
        let readings: Vec<_> =
            self.sensors.iter().enumerate().map(|(place, sensor)| sensor.reading(place, state, now)).collect();
        let is_shedding = state.shed_level().value() > 0.0;
        let activity = LimitActivity { is_shedding, has_refused: state.take_refusals() };
        let next = self.scale.observe(now, &readings, activity);
        let arrived = state.arrived();
        let since = PriorityCounts {
            low: arrived.low - self.arrived.low,
            normal: arrived.normal - self.arrived.normal,
            high: arrived.high - self.arrived.high,
        };
        self.arrived = arrived;
        let may_begin = next.needs_shedding || self.limits.is_empty() && !next.is_by_hand;
        let level = self.shedding.observe(now, next.worst, since, may_begin);
        state.publish(next.basis_points, level);
        let is_other = next.basis_points != self.last.basis_points;
        self.last = next;
        if is_other {
            self.scale_limits();
        }
        self.tell(is_shedding, level.value());
    }

    fn scale_limits(&self) {
        self.limits.iter().for_each(|limit| limit.set_scale(self.last.basis_points));
    }

    /// Lines of the log: a change of the scale by ten points, and the begin and the end of shedding.
    fn tell(&mut self, was_shedding: bool, shed: f64) {
        let (scale, from) = (self.last.basis_points, self.told);
        let worst = self.last.worst.as_ref().and_then(|worst| self.sensors.get(worst.sensor));
        let (sensor, value) = worst.map_or(("none", String::new()), |own| (&*own.name, own.shown()));
        let is_at_an_end = scale == FULL_SCALE || scale == self.spec.floor * 100;
        if scale.abs_diff(from) >= TOLD || (is_at_an_end && scale != from) {
            let (scale, from) = (format!("{}%", scale / 100), format!("{}%", from / 100));
            tracing::warn!(target: "sluicegate::overload", from, to = scale, sensor, value, "adaptive limits are scaled");
            self.told = self.last.basis_points;
        }
        if was_shedding != (shed > 0.0) {
            let what = if was_shedding { "no requests are shed any more" } else { "requests are shed by priority" };
            tracing::warn!(target: "sluicegate::overload", sensor, value, "{what}");
        }
    }

    fn percent_of(&self, place: usize) -> u64 {
        let excess = self.sensors.get(place).and_then(|sensor| Some(sensor.value? / sensor.above));
        excess.map_or(0, |excess| (excess.max(0.0) * 100.0).round() as u64)
    }

    fn report(&self) -> Value {
        let shed = self.state.shed_level().value();
        let sensor = |(place, sensor): (usize, &Sensor)| {
            json!({
                "sensor": sensor.name,
                "value": sensor.value.map(rounded),
                "above": rounded(sensor.above),
                "percent": self.percent_of(place),
                "fault": sensor.fault,
            })
        };
        json!({
            "scale_percent": rounded(f64::from(self.last.basis_points) / 100.0),
            "by_hand": self.last.is_by_hand,
            "floor_percent": self.spec.floor,
            "adaptive_limits": self.limits.len(),
            "worst": self.last.worst.as_ref().and_then(|worst| self.sensors.get(worst.sensor)).map(|own| &*own.name),
            "shed_percent": { "low": rounded(shed.min(1.0) * 100.0), "normal": rounded((shed - 1.0).max(0.0) * 100.0) },
            "sensors": self.sensors.iter().enumerate().map(sensor).collect::<Vec<_>>(),
        })
    }

    /// The section is gone.
    fn end(self) {
        self.state.publish(FULL_SCALE, crate::overload::ShedLevel::NONE);
        self.limits.iter().for_each(|limit| limit.set_scale(FULL_SCALE));
    }
}

impl Sensor {
    /// It is off until the next reload.
    fn fail(&mut self, fault: String) {
        let sensor = &*self.name;
        tracing::warn!(target: "sluicegate::overload", sensor, fault, "a sensor of [overload] cannot be read, and is off");
        (self.value, self.fault) = (None, Some(fault));
    }

    fn is_of_machine(&self) -> bool {
        matches!(self.kind, SensorKind::Cpu | SensorKind::Memory | SensorKind::CpuPressure)
    }

    fn read_machine(&self, machine: &mut MachineSensors, now: Tick) -> Result<Option<f64>, SensorError> {
        match self.kind {
            SensorKind::Cpu => machine.cpu(now),
            SensorKind::Memory => machine.memory().map(Some),
            SensorKind::CpuPressure => machine.cpu_pressure().map(Some),
            SensorKind::ResponseTime { .. } | SensorKind::Failures => Ok(None),
        }
    }

    /// The value by what workers have seen for so long.
    fn read_workers(&self, state: &OverloadState, window: Span, now: Tick) -> Option<f64> {
        match &self.kind {
            SensorKind::ResponseTime { samples, quantile } => {
                let above = Span::from_nanos((self.above * 1e9) as u64);
                samples.quantile(*quantile, above, window, now).map(|took| took.as_nanos() as f64 / 1e9)
            }
            SensorKind::Failures => Some(state.failures_per_minute(window, now)),
            SensorKind::Cpu | SensorKind::Memory | SensorKind::CpuPressure => None,
        }
    }

    fn reading(&self, place: usize, state: &OverloadState, now: Tick) -> SensorReading {
        let window = match self.kind {
            SensorKind::Cpu | SensorKind::Memory => Span::from_secs(1),
            SensorKind::CpuPressure | SensorKind::ResponseTime { .. } | SensorKind::Failures => SAMPLE_WINDOW,
        };
        let is_above = self.value.is_some_and(|value| value > self.above);
        let recent = if is_above { self.read_workers(state, RECENT, now) } else { None };
        SensorReading { sensor: place, value: self.value, recent, above: self.above, window }
    }

    fn shown(&self) -> String {
        let value = self.value.unwrap_or_default();
        match self.kind {
            SensorKind::Cpu | SensorKind::Memory | SensorKind::CpuPressure => format!("{:.0}%", value * 100.0),
            SensorKind::ResponseTime { .. } => format!("{:.0}ms", value * 1e3),
            SensorKind::Failures => format!("{value:.0}/m"),
        }
    }
}

fn adaptive<'l>(limits: impl Iterator<Item = &'l Arc<Limit>>) -> Vec<Arc<Limit>> {
    limits.filter(|limit| limit.spec().is_adaptive).cloned().collect()
}

fn sensors(spec: &Overload, responses: Vec<(ResponseTime, Arc<ResponseSamples>)>) -> Vec<Sensor> {
    let share = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
    let sensor = |name: &str, kind, above: Option<f64>| {
        above.map(|above| Sensor { name: name.to_owned(), kind, above, value: None, fault: None })
    };
    let of_machine = [
        sensor("cpu", SensorKind::Cpu, share(spec.cpu)),
        sensor("memory", SensorKind::Memory, share(spec.memory)),
        sensor("cpu_pressure", SensorKind::CpuPressure, share(spec.cpu_pressure)),
    ];
    let of_upstreams = responses.into_iter().map(|(own, samples)| {
        let kind = SensorKind::ResponseTime { samples, quantile: own.quantile };
        sensor(&format!("response_time:{}", own.upstream), kind, Some(own.above.as_nanos() as f64 / 1e9))
    });
    let failures = sensor("dead_letters", SensorKind::Failures, spec.failures_per_minute());
    of_machine.into_iter().chain(of_upstreams).chain([failures]).flatten().collect()
}

fn told(error: &SensorError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
