// Command run is the program of the package load, for Pods and for clients outside of a cluster.
//
//	run serve [-listen :8080] [-drain 10s]                  answer with the host's name, and go on for 10 s after SIGTERM
//	run connect [-rate 100] [-count 0] ADDRESS...           new connections, to the addresses in turn
//	run ask [-timeout 2s] ADDRESS...                        a connection to each: who answers, and with which source
//	run hold [-n 30] [-every 1s] [-count 0] ADDRESS...      long connections, each of which asks every second
//
// connect and hold end after -for, after -count connections, or at SIGTERM, and print a load.Result as one line of JSON. With -v
// they print each failure to the standard error, as it comes. serve prints the time at which it is told to end.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("usage: run serve|ask|connect|hold [flags] [ADDRESS...]")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	var client load.Client
	var span time.Duration
	switch args[0] {
	case "ask":
		timeout := flags.Duration("timeout", 2*time.Second, "until answered")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		ask(ctx, *timeout, flags.Args(), out)
		return nil
	case "serve":
		listen := flags.String("listen", ":8080", "address")
		drain := flags.Duration("drain", 0, "time that the server goes on after SIGTERM")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return serve(ctx, *listen, *drain, out)
	case "connect":
		flags.IntVar(&client.Rate, "rate", 100, "connections a second")
	case "hold":
		flags.IntVar(&client.Long, "n", 30, "connections at a time")
		flags.DurationVar(&client.Every, "every", time.Second, "time between two requests of a connection")
	default:
		return fmt.Errorf("%s: unknown command", args[0])
	}
	flags.IntVar(&client.Count, "count", 0, "connections in all, 0 for any number")
	flags.DurationVar(&client.Timeout, "timeout", 2*time.Second, "until connected, and of each answer")
	flags.BoolFunc("v", "print failures at once", func(string) error {
		client.Failed = func(err error) { fmt.Fprintln(os.Stderr, err) }
		return nil
	})
	flags.DurationVar(&span, "for", 0, "time, 0 until SIGTERM")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if client.Targets = flags.Args(); span > 0 {
		limited, cancel := context.WithTimeout(ctx, span)
		defer cancel()
		ctx = limited
	}
	result, err := client.Run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}

// ask prints a line for each address: server and source, or why there is no answer.
func ask(ctx context.Context, timeout time.Duration, addrs []string, out io.Writer) {
	lines := make([]string, len(addrs))
	var all sync.WaitGroup
	for i, a := range addrs {
		all.Go(func() { lines[i] = load.Ask(ctx, a, timeout) })
	}
	all.Wait()
	fmt.Fprintln(out, strings.Join(lines, "\n"))
}

func serve(ctx context.Context, listen string, drain time.Duration, out io.Writer) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host's name: %w", err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "listening at", l.Addr())
	told := context.AfterFunc(ctx, func() { fmt.Fprintln(out, "told to end at", time.Now().UTC().Format(time.RFC3339Nano)) })
	defer told()
	return (&load.Server{Name: name, Drain: drain}).Serve(ctx, l)
}
