package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	//lint:ignore SA1019 the dialers of client-go 0.37 return these types
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forward connects to a port of a Pod through the API server. There is no local port that other users of this machine could
// connect to.
func (c *cluster) forward(ctx context.Context, pod string, port int32) (net.Conn, error) {
	url := c.objects.portForward(c.agentNamespace, pod)
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(url, c.config)
	if err != nil {
		return nil, err
	}
	dialer := portforward.NewFallbackDialer(overWebSocket, overSPDY, func(err error) bool { // API servers before 1.30
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	type dialed struct {
		connection httpstream.Connection
		err        error
	}
	done := make(chan dialed, 1)
	go func() { // Dial takes no context
		connection, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		done <- dialed{connection, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, fmt.Errorf("forward a port of Pod %s: %w", pod, d.err)
		}
		return openStreams(d.connection, pod, port)
	case <-ctx.Done():
		go func() {
			if d := <-done; d.connection != nil {
				d.connection.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// openStreams opens the streams of one forwarded connection: data, and an error if it fails.
func openStreams(connection httpstream.Connection, pod string, port int32) (net.Conn, error) {
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := connection.CreateStream(header)
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("forward a port of Pod %s: %w", pod, err)
	}
	failures.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(header)
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("forward a port of Pod %s: %w", pod, err)
	}
	s := &stream{Stream: data, connection: connection, failed: make(chan error, 1)}
	go func() {
		text, err := io.ReadAll(io.LimitReader(failures, 4096))
		if err == nil && len(text) > 0 {
			err = fmt.Errorf("port %d of Pod %s: %s", port, pod, strings.TrimSpace(string(text)))
			if strings.Contains(string(text), "connection refused") {
				err = fmt.Errorf("%w (is stateBindAddress set in its configuration?)", err)
			}
		}
		s.failed <- err
		if err != nil {
			connection.Close()
		}
	}()
	return s, nil
}

// stream is a forwarded connection.
type stream struct {
	httpstream.Stream
	connection httpstream.Connection
	failed     chan error // how the error stream has ended
}

// Read implements net.Conn. The reason of a failure replaces an early end.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if err != nil && n == 0 {
		select {
		case failure := <-s.failed:
			s.failed <- failure
			if failure != nil {
				return 0, failure
			}
		case <-time.After(failureTimeout):
		}
	}
	return n, err
}

// failureTimeout is how long the end of a connection waits for its reason.
const failureTimeout = 200 * time.Millisecond

// Close implements net.Conn.
func (s *stream) Close() error { return errors.Join(s.Stream.Close(), s.connection.Close()) }

// LocalAddr implements net.Conn.
func (*stream) LocalAddr() net.Addr { return forwarded{} }

// RemoteAddr implements net.Conn.
func (*stream) RemoteAddr() net.Addr { return forwarded{} }

// SetDeadline implements net.Conn. The context of a request bounds it.
func (*stream) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*stream) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (*stream) SetWriteDeadline(time.Time) error { return nil }

// forwarded is the address of both ends.
type forwarded struct{}

func (forwarded) Network() string { return "portforward" }
func (forwarded) String() string  { return "portforward" }
