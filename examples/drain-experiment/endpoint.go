package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// server is what runs in a Pod, in a process of its own: it sends a line to each connection, "name client-address", and then
// echoes.
type server struct {
	name string
	// limit is how many connections it serves at a time; a connection beyond it is reset. It begins with cold of them, and
	// reaches limit after warmUp, as caches fill.
	limit, cold int
	warmUp      time.Duration
	// After SIGTERM it stops accepting connections stopAccepting later, and exits when the last one has ended, or after grace.
	stopAccepting, grace time.Duration
	// delay is how long it takes to echo.
	delay time.Duration
}

// serverCommand is the first argument of this program in the Pods.
const serverCommand = "serve"

// start runs the server on a host, with a listener that accepts connections from now on.
func (s *server) start(h *testnet.Host, at string) (*testnet.Program, error) {
	var listener net.Listener
	err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp4", at)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	defer file.Close()
	cmd := exec.Command("/proc/self/exe", serverCommand, "-name", s.name, "-limit", strconv.Itoa(s.limit), "-cold", strconv.Itoa(s.cold),
		"-warm-up", s.warmUp.String(), "-stop-accepting", s.stopAccepting.String(), "-grace", s.grace.String(), "-delay", s.delay.String())
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the experiment
	return h.Start(cmd)
}

// serve is the main function in the Pods. It returns the exit code.
func serve(args []string) int {
	var s server
	flags := flag.NewFlagSet(serverCommand, flag.ExitOnError)
	flags.StringVar(&s.name, "name", "", "")
	flags.IntVar(&s.limit, "limit", 0, "")
	flags.IntVar(&s.cold, "cold", 0, "")
	flags.DurationVar(&s.warmUp, "warm-up", 0, "")
	flags.DurationVar(&s.stopAccepting, "stop-accepting", 0, "")
	flags.DurationVar(&s.grace, "grace", 0, "")
	flags.DurationVar(&s.delay, "delay", 0, "")
	_ = flags.Parse(args) // exits on an error
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = syscall.Close(3) // FileListener has a copy
	go func() {
		<-terminated
		time.Sleep(s.stopAccepting)
		_ = listener.Close()
		time.Sleep(s.grace)
		os.Exit(1)
	}()
	s.accept(listener)
	return 0
}

// capacity is how many connections the server takes at a time when it has run for a while.
func (s *server) capacity(age time.Duration) int {
	if age >= s.warmUp {
		return s.limit
	}
	return s.cold + int(float64(s.limit-s.cold)*float64(age)/float64(s.warmUp))
}

// accept serves connections until the listener is closed, and returns when all have ended.
func (s *server) accept(listener net.Listener) {
	began := time.Now()
	var open atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		if open.Add(1) > int64(s.capacity(time.Since(began))) {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			open.Add(-1)
			continue
		}
		wg.Go(func() {
			defer open.Add(-1)
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s %s\n", s.name, c.RemoteAddr()); err != nil {
				return
			}
			buf := make([]byte, 64)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				time.Sleep(s.delay)
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		})
	}
}
