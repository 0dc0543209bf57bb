//! TLS over real sockets: clients and servers of rustls, in blocking code, with certificates of the tests' own.

mod accepting;
mod clients;
mod life;
pub mod peer;
mod redirect;
mod renewal;
mod upstream;
