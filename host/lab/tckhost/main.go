// Command tckhost is the adapter of sluice's plugin host for the conformance kit, sdk/tck: it answers commands, lines of JSON on
// its standard input, on its standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "tckhost:", err)
		os.Exit(1)
	}
}

// run serves until in ends.
func run(args []string, in io.Reader, out, log io.Writer) error {
	flags := flag.NewFlagSet("tckhost", flag.ContinueOnError)
	missing := flags.String("missing", "", "inputs that this host does not give, with commas between them")
	verbose := flags.Bool("v", false, "print the log of host and guests")
	if err := flags.Parse(args); err != nil {
		return err
	}
	a, err := newAdapter(strings.FieldsFunc(*missing, func(r rune) bool { return r == ',' }), verboseLog(*verbose, log))
	if err != nil {
		return err
	}
	defer func() { _ = a.host.Close(context.Background()) }()
	lines, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c hosts.Command
		if err := lines.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := answers.Encode(a.do(context.Background(), &c)); err != nil {
			return err
		}
	}
}

func verboseLog(verbose bool, to io.Writer) *slog.Logger {
	if !verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// adapter is a host for the conformance kit.
type adapter struct {
	host    *wasm.Host
	missing []string
	plugins map[string]*plugin
}

type plugin struct {
	*wasm.Plugin
	settings  string
	evaluator *policy.Evaluator // of enforce
	policy    *policy.Policy
}

func newAdapter(missing []string, log *slog.Logger) (*adapter, error) {
	without := map[string]string{}
	for _, name := range missing {
		without[name] = "the conformance kit tries a host without it"
	}
	host, err := wasm.New(context.Background(), wasm.Options{Missing: without, Limits: wasm.OfflineLimits(), Log: log})
	if err != nil {
		return nil, err
	}
	return &adapter{host, missing, map[string]*plugin{}}, nil
}

// do answers a command.
func (a *adapter) do(ctx context.Context, c *hosts.Command) *hosts.Answer {
	answer := &hosts.Answer{}
	var err error
	switch c.Op {
	case hosts.OpHello:
		answer.Host = "sluice"
		answer.Missing, answer.Enforces = a.missing, true
	case hosts.OpLoad:
		err = a.load(ctx, c)
	case hosts.OpDecide:
		answer.Response, err = a.decide(c)
	case hosts.OpEnforce:
		if p := a.plugins[c.Plugin]; p != nil && c.Request != nil {
			return p.enforce(c.Request)
		}
		err = fmt.Errorf("no plugin %q, or no request", c.Plugin)
	case hosts.OpUnload:
		if p := a.plugins[c.Plugin]; p != nil {
			err = p.Close()
			delete(a.plugins, c.Plugin)
		}
	default:
		err = fmt.Errorf("unknown operation %q", c.Op)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

func (a *adapter) load(ctx context.Context, c *hosts.Command) error {
	module, err := os.ReadFile(c.Module)
	if err != nil {
		return err
	}
	settings := text(c.Settings, "")
	p, err := a.host.LoadWith(ctx, c.Plugin, module, []byte(settings), wasm.LoadOptions{})
	if err != nil {
		return err
	}
	if old := a.plugins[c.Plugin]; old != nil {
		err = old.Close()
	}
	a.plugins[c.Plugin] = &plugin{Plugin: p, settings: settings}
	return err
}

// decide answers a request as the policy engine does.
func (a *adapter) decide(c *hosts.Command) (*hosts.Response, error) {
	p := a.plugins[c.Plugin]
	if p == nil || c.Request == nil {
		return nil, fmt.Errorf("no plugin %q, or no request", c.Plugin)
	}
	call := policy.Call{Plugin: p, Request: *c.Request}
	call.Request.Settings = abi.Settings{Text: text(c.Settings, p.settings)}
	call.Response.Reset(len(call.Request.Endpoints))
	call.Do()
	if call.Err == nil {
		call.Err = call.Check(p.Role())
		if chosen := func(e abi.Endpoint) bool { return e.Conditions&abi.Chosen != 0 }; !slices.ContainsFunc(call.Request.Endpoints, chosen) {
			call.Err = nil // the policy engine calls no plugin then
		}
	}
	if call.Err != nil {
		return nil, call.Err
	}
	return hosts.ResponseOf(&call.Response), nil
}

func text(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}
