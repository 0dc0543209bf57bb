mod calendar;
mod families;
mod server;
mod store;
mod tls;
