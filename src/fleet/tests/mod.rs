mod families;
mod server;
