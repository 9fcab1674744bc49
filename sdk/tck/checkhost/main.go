// Command checkhost proves a host of the plugin ABI: it starts the host's adapter, drives it, and prints a verdict for each
// requirement. ../README.md has the protocol.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/tck"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 if the host conforms, 1 if not, 2 if it was not tried.
func run(ctx context.Context, args []string, out, log io.Writer) int {
	flags := flag.NewFlagSet("checkhost", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.Usage = func() {
		fmt.Fprintln(log, "Usage: checkhost [flags] ADAPTER [ARGUMENT...]\n\nProves the host behind a program that speaks the protocol of sdk/tck/README.md. Needs wat2wasm (wabt).\n\nFlags:")
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print the report as JSON")
	only := flags.String("only", "", "IDs of requirements to try, with commas between them")
	timeout := flags.Duration("timeout", 10*time.Second, "how long the host may take for a command")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	options := hosts.Options{Timeout: *timeout}
	if *only != "" {
		options.Only = strings.Split(*only, ",")
	}
	name, report, err := hosts.Run(ctx, hosts.Start(log, flags.Arg(0), flags.Args()[1:]...), options)
	if err != nil {
		fmt.Fprintln(log, "checkhost:", err)
		return 2
	}
	if *asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(struct {
			Host string `json:"host"`
			*tck.Report
		}{name, report})
	} else {
		fmt.Fprintf(out, "host: %s\n\n", name)
		report.Print(out)
	}
	switch {
	case err != nil:
		fmt.Fprintln(log, "checkhost:", err)
		return 2
	case !report.Conforms:
		return 1
	}
	return 0
}
