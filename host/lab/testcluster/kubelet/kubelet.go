// Package kubelet stands in for the part of a kubelet that forwards ports: it speaks the kubelet's protocol with the kubelet's
// own library. A Pod is what dial connects to; there is no container runtime, and no caller is authenticated.
package kubelet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// Port is the port at which an API server expects a kubelet.
const Port = 10250

const (
	idleTimeout     = time.Hour
	creationTimeout = time.Minute
)

// Dial connects to a port of a Pod on its loopback address.
type Dial func(ctx context.Context, namespace, pod string, port int32) (net.Conn, error)

// Serve serves on a listener, with a certificate of its own, until stop is called.
func Serve(l net.Listener, dial Dial) (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f := forwarder{r.PathValue("namespace"), dial}
		portforward.ServePortForward(w, r, f, r.PathValue("pod"), "", options, idleTimeout, creationTimeout, portforward.SupportedProtocols)
	})
	s := httptest.NewUnstartedServer(mux)
	s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	return func() {
		s.CloseClientConnections()
		s.Close()
	}
}

// forwarder implements portforward.PortForwarder for a namespace.
type forwarder struct {
	namespace string
	dial      Dial
}

// PortForward copies until both ends have closed.
func (f forwarder) PortForward(ctx context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	c, err := f.dial(ctx, f.namespace, pod, port)
	if err != nil {
		return err
	}
	defer c.Close()
	up := make(chan error, 1)
	go func() {
		_, err := io.Copy(c, stream)
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			err = errors.Join(err, half.CloseWrite())
		}
		up <- err
	}()
	_, err = io.Copy(stream, c)
	return err
}
