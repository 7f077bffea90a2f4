package main

import (
	"context"
	"net"
	"sync/atomic"
)

// traffic counts the bytes of the connections that are dialled through it.
type traffic struct{ written, read atomic.Int64 }

func (t *traffic) dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &countingConn{conn, t}, nil
}

type countingConn struct {
	net.Conn
	traffic *traffic
}

func (c *countingConn) Write(bytes []byte) (int, error) {
	n, err := c.Conn.Write(bytes)
	c.traffic.written.Add(int64(n))
	return n, err
}

func (c *countingConn) Read(bytes []byte) (int, error) {
	n, err := c.Conn.Read(bytes)
	c.traffic.read.Add(int64(n))
	return n, err
}
