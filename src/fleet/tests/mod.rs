mod families;
mod server;
mod store;
