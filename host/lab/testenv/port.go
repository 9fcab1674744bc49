package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// FreePort returns a TCP port that nothing listens on. It is below Linux's ephemeral ports, one of which any process may get
// until the test listens, and below NodePorts.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(10000 + rand.N(20000))
		if l, err := net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("none of 100 ports is free")
	return 0
}
