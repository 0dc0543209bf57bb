//! Simulations of overload: a plant with limits and a server, under the scale and the shedding. The seed of a run that
//! fails is in the message.

mod attack;
mod plant;
mod scale;
mod shed;
