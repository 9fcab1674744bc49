package realcluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Forward accepts connections and forwards them to the API server, until the listener is closed.
func (c *Cluster) Forward(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go c.forward(conn)
	}
}

func (c *Cluster) forward(conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	api, err := c.control.Host().Dial(ctx, "tcp", c.Addr())
	if err != nil {
		return
	}
	defer api.Close()
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(api, conn)
		api.(*net.TCPConn).CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(conn, api)
	conn.(*net.TCPConn).CloseWrite()
	<-done
}

// KubeconfigFor writes the administrator's kubeconfig for an address of Forward's listener.
func (c *Cluster) KubeconfigFor(addr net.Addr, path string) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + addr.String()
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return os.WriteFile(path, data, 0o600)
}
