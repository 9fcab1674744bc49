// Package orcaserver serves ORCA reports to tests, true and hostile ones.
package orcaserver

import (
	"encoding/binary"
	"math"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// Number is a field of a report.
func Number(field protowire.Number, n float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, field, protowire.Fixed64Type), math.Float64bits(n))
}

// Named is an entry of a map of a report.
func Named(field protowire.Number, name string, n float64) []byte {
	entry := append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name), Number(2, n)...)
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), entry)
}

// Frame is a message as gRPC frames it.
func Frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// Answer writes the headers of an answer, and messages.
func Answer(w http.ResponseWriter, messages ...[]byte) {
	w.Header().Set("Content-Type", "application/grpc")
	w.WriteHeader(http.StatusOK)
	for _, m := range messages {
		_, _ = w.Write(Frame(m))
		w.(http.Flusher).Flush()
	}
}

// Serve runs an HTTP/2 server without TLS until the test ends.
func Serve(t testing.TB, l net.Listener, handle http.HandlerFunc) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: handle, Protocols: protocols}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
}

// Listen listens at an address, such as 127.0.0.1:0, until the test ends.
func Listen(t testing.TB, address string) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}
