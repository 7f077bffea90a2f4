//go:build !dialect_a

package main

import "github.com/asynkron/protoactor-go/remote"

func serverConnection(id, address string) *remote.ServerConnection {
	return &remote.ServerConnection{MemberId: id, Address: address}
}
