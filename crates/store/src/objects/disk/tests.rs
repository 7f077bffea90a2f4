//! A disk as its owner sees it: what was acknowledged is there again, whatever happened in between.

mod damage;
mod listings;
mod parts;
mod samples;
mod stories;
