//! Overload: sensors, the scale of adaptive limits, and shedding by priority.
//!
//! Limits bound what each client may ask. Overload is when all clients together are too much, for this process or for
//! the servers behind it. This crate has the parts that decide:
//!
//! 1. [`MachineSensors`] reads CPU, memory and CPU pressure from the files of Linux.
//! 2. [`LatencySamples`] and [`FailureRate`] are the other sensors: response time, and failures a minute.
//! 3. [`LimitScale`] makes one number of all readings: the share to which adaptive limits are scaled.
//! 4. [`Shedding`] refuses requests by [`Priority`] where the scale is at its floor and a sensor is still above.
//!
//! All but the first are pure: time is an argument, and so is chance. There is no thread and no clock here. The caller
//! is a task that wakes up once a second. It reads the sensors, moves the scale, then the shedding, and publishes two
//! numbers that each request reads: [`ScaleState::basis_points`] and [`ShedLevel::bits`].

#[macro_use]
extern crate sluicegate_words;

mod cgroup;
mod kernel_file;
mod sample_sets;
pub mod samples;
pub mod scale;
pub mod sensors;
pub mod shed;
mod slots;

pub use kernel_file::SensorError;
pub use sample_sets::{FailureSet, SampleSet};
pub use samples::{FailureRate, LatencySamples, ServerFailure};
pub use scale::{FULL_SCALE, LimitActivity, LimitScale, ScaleState, ScaleTerms, SensorReading, WorstSensor};
pub use sensors::MachineSensors;
pub use shed::{Priority, PriorityCounts, ShedLevel, Shedding};
