// Package orca asks a server for reports of its load: the out-of-band service of ORCA (xds.service.orca.v3.OpenRcaService), one
// gRPC method of one message that streams its answers. It speaks HTTP/2 and protobuf itself: gRPC would be linked into the
// program that runs on each node. What a server sends is bounded.
package orca

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds of a stream.
const (
	maxMessage  = 64 << 10        // bytes
	maxHeaders  = 8 << 10         // bytes
	dialTimeout = 5 * time.Second // until the server has accepted the connection
	// Silence is after which time without a report a stream ends: servers may report less often than they are asked to, gRPC's
	// own each 30 s at most.
	Silence = 3 * time.Minute
	// A server may send so many bytes, and so many more each second: reports come each interval.
	burst, rate = 256 << 10, 16 << 10
	minInterval = time.Second // between reports that are looked at
	maxText     = 200         // bytes of a server's message in an error
)

// method is the path of OpenRcaService.StreamCoreMetrics.
const method = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"

// Stream asks the server at addr for a report each interval, and calls report with each, until ctx ends, the server ends the
// stream or breaks a bound. The error says why; it is never nil.
func Stream(ctx context.Context, addr netip.AddrPort, interval time.Duration, report func(*Report)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	transport := newTransport(addr)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr.String()+method, bytes.NewReader(question(interval)))
	if err != nil {
		return err
	}
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"sluice-controller"}}
	watchdog := time.AfterFunc(Silence, func() { cancel(fmt.Errorf("no report for %s", Silence)) })
	defer watchdog.Stop()
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return cause(ctx, err)
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "application/grpc") {
		return fmt.Errorf("not a gRPC server: HTTP status %d, content type %.60q", answer.StatusCode, kind)
	}
	if err := status(answer.Header); err != nil {
		return err
	}
	var last time.Time
	buffer := make([]byte, 0, 512)
	for {
		message, err := next(answer.Body, buffer)
		switch {
		case errors.Is(err, io.EOF):
			if err := status(answer.Trailer); err != nil {
				return err
			}
			return errors.New("the server has ended the stream")
		case err != nil:
			return cause(ctx, err)
		}
		buffer = message[:0]
		if now := time.Now(); now.Sub(last) >= minInterval {
			r, err := Parse(message)
			if err != nil {
				return err
			}
			last = now
			watchdog.Reset(Silence)
			report(r)
		}
	}
}

// cause returns why ctx has ended, if it has, instead of an error that only says that it has.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// newTransport returns a transport of one connection to a server, without TLS: HTTP/2 from the first byte.
func newTransport(addr netip.AddrPort) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders, MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}}
			conn, err := d.DialContext(ctx, "tcp", addr.String())
			if err != nil {
				return nil, err
			}
			return &meteredConn{Conn: conn, begun: time.Now()}, nil
		},
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10, MaxReadFrameSize: 16 << 10,
			MaxDecoderHeaderTableSize: 4 << 10, SendPingTimeout: time.Minute, PingTimeout: 15 * time.Second},
	}
}

// question is the request in a gRPC frame: OrcaLoadReportRequest with the interval, a google.protobuf.Duration.
func question(interval time.Duration) []byte {
	var of, b []byte
	of = protowire.AppendVarint(protowire.AppendTag(of, 1, protowire.VarintType), uint64(interval/time.Second))
	b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), of)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// next reads the message of the next gRPC frame into a buffer. The error is io.EOF at the end of the stream.
func next(body io.Reader, buffer []byte) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the stream ends within a message")
		}
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	switch {
	case head[0] != 0:
		return nil, errors.New("a compressed message, which was not asked for")
	case n > maxMessage:
		return nil, fmt.Errorf("a message of %d bytes, more than %d", n, maxMessage)
	case int(n) > cap(buffer):
		buffer = make([]byte, n)
	}
	buffer = buffer[:n]
	if _, err := io.ReadFull(body, buffer); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("the stream ends within a message")
	} else if err != nil {
		return nil, err
	}
	return buffer, nil
}

// status returns an error if headers or trailers have a gRPC status other than OK.
func status(h http.Header) error {
	code, text := h.Get("Grpc-Status"), h.Get("Grpc-Message")
	if code == "" || code == "0" {
		return nil
	}
	return fmt.Errorf("gRPC status %.8q: %.*q", code, maxText, text)
}

// meteredConn fails when the server sends more than it may: whatever that is, reading it costs CPU time.
type meteredConn struct {
	net.Conn
	mu    sync.Mutex
	begun time.Time
	read  int64
}

// Read implements net.Conn.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += int64(n)
	if allowed := burst + int64(time.Since(c.begun).Seconds()*rate); c.read > allowed {
		return 0, fmt.Errorf("the server has sent %d bytes, more than %d and %d each second", c.read, burst, rate)
	}
	return n, err
}
