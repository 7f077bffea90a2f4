//! A small cluster of coordinators and disks in memory, whose messages are delivered by hand.
