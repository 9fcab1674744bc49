package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/replay"
	"github.com/sluice-proxy/sluice/host/whatif/report"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// replayFlags are the inputs of a replay.
type replayFlags struct {
	file            string
	config, against string
	only            serviceFilter
	failIf          failIf
}

func newReplayCommand() *cobra.Command {
	var in replayFlags
	var output, page, namespace string
	cmd := &cobra.Command{
		Use:   "replay FILE [-n NAMESPACE] [SERVICE]",
		Short: "Decide again about what a node has recorded",
		Long: `Reads a recording of 'sluice run --record', and computes in virtual time what a configuration would have planned on that node. With
--against, prints how the configuration, the candidate, differs from another one, the baseline: when, for which Services and endpoints, and for
what share of the new connections. With a namespace, or a Service of it, only for theirs; plugin calls are those of all Services. Needs neither root nor a kernel, and changes nothing.

Drains, last good decisions and the state of plugins begin anew at the beginning of the recording.`,
		Example: "  sluice replay node-a1.rec --config new.yaml --against old.yaml\n" +
			"  sluice replay node-a1.rec --config new.yaml --against none --fail-if 'max_divergence > 20%'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return oneArg("FILE")(cmd, args)
			}
			return atMostOneArg("Service")(cmd, args[1:])
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.file = args[0]
			in.only, err = newServiceFilter(namespace, args[1:])
			example := &replay.Result{Runs: make([]replay.Run, 1), Comparison: new(replay.Comparison)}
			if err := errors.Join(err, checkOutput(output, "text", "json", "yaml"), in.failIf.parse(in.against, example.Metrics(0), new(replay.Service).Metrics())); err != nil {
				return err
			}
			result, err := in.run(cmd.Context())
			if err != nil {
				return err
			}
			if err := writePage(page, func(w io.Writer, o report.Origin) error { return report.Replay(w, result, o) }); err != nil {
				return err
			}
			if output != "text" {
				err = printer.Object(cmd.OutOrStdout(), output, result)
			} else {
				printReplay(cmd.OutOrStdout(), result)
			}
			if err != nil {
				return err
			}
			return in.failIf.err()
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.config, "config", "", "configuration file (SluiceConfiguration) that decides: the candidate (default: no policies)")
	f.StringVar(&in.against, "against", "", "configuration file to compare with: the baseline; none: no policies")
	f.StringVarP(&output, "output", "o", "text", "text, json or yaml")
	f.StringVar(&page, "html", "", "file to write a report to, as an HTML page without references to others")
	f.StringVarP(&namespace, "namespace", "n", "", "only Services of this namespace (default: all)")
	in.failIf.register(cmd, "'differing_services > 0', 'max_divergence(shop/catalog) > 20%' or 'weight_changes > baseline'")
	return cmd
}

// run reads the configurations and replays the recording.
func (in *replayFlags) run(ctx context.Context) (*replay.Result, error) {
	file, err := safefile.Open(in.file)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader, err := recording.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.file, err)
	}
	files := []string{in.config}
	if in.against != "" {
		files = append(files, in.against)
	}
	var configs []replay.Config
	var keeps []recording.Keep
	for i, name := range files {
		cfg := config.Default()
		if i == 1 && name == "none" {
			name = ""
		}
		if name != "" {
			if cfg, err = config.Load(name); err != nil {
				return nil, err
			}
		}
		cfg.HostnameOverride = reader.Header.Node
		set, err := plugins.Open(ctx, cfg, plugins.Options{Compiler: compileCommand, Process: processCommand, Precompiled: precompiledPlugins(), Offline: true, Log: warningsLogger()})
		if err != nil {
			return nil, err
		}
		defer set.Close(ctx)
		if _, err := set.Load(ctx, cfg, nil); err != nil {
			printError(err)
		}
		keeps = append(keeps, agent.RecordingKeep(cfg, set))
		configs = append(configs, replay.Config{File: name, Settings: agent.PlanSettings(cfg, nil), Plugins: set.Get})
	}
	result, err := replay.Replay(reader, configs, replay.Options{Only: in.only.has, Conditions: in.failIf.conditions})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.file, err)
	}
	for i := range keeps {
		if missing := missingKeys(&keeps[i], result.Keep); len(missing) > 0 {
			result.Notes = append(result.Notes, fmt.Sprintf("%s: its plugins declare what the recording does not have, because no plugin did when it was made: %s",
				verdict.Label(configs[i].File), strings.Join(missing, ", ")))
		}
	}
	return result, nil
}

// missingKeys returns the keys that are declared and not recorded.
func missingKeys(declared, recorded *recording.Keep) (out []string) {
	for _, k := range []struct {
		kind      string
		want, has []string
	}{
		{"label", declared.PodLabels, recorded.PodLabels},
		{"annotation", declared.PodAnnotations, recorded.PodAnnotations},
		{"annotation of the Service", declared.ServiceAnnotations, recorded.ServiceAnnotations},
	} {
		for _, key := range k.want {
			if !slices.Contains(k.has, key) {
				out = append(out, k.kind+" "+key)
			}
		}
	}
	return out
}

// Bounds of the text; JSON has everything.
const (
	maxTextPeriods   = 3
	maxTextEndpoints = 4
)

// printReplay prints a result: the verdict first.
func printReplay(out io.Writer, r *replay.Result) {
	r = printable.Strings(r)
	t := r.Table()
	printSentences(out, report.ReplayVerdict(r), t.Failures())
	fmt.Fprintf(out, "\nnode %s, mode %s, sluice %s; %s to %s (%s)\n", r.Header.Node, r.Header.Mode, r.Header.Version,
		r.From.Format("2006-01-02 15:04:05 UTC"), r.To.Format("15:04:05"), roundedSeconds(r.To.Sub(r.From).Seconds()))
	fmt.Fprintf(out, "%d changes, %d readings of outcomes; at the end %d Services, %d endpoints\n", r.Changes, r.Readings, r.Services, r.Endpoints)
	printMetrics(out, t)
	if r.Comparison != nil {
		printDifferences(out, r)
	}
	for _, note := range report.ReplayNotes(r) {
		fmt.Fprintf(out, "\nnote: %s\n", note)
	}
}

func roundedSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

func shareText(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// printDifferences prints when and for whom the runs differ.
func printDifferences(out io.Writer, r *replay.Result) {
	c := r.Comparison
	for i := range c.Services {
		s := &c.Services[i]
		if i == maxTextServices {
			fmt.Fprintf(out, "\n%d more Service ports differ; -o json lists %d\n", c.Differing-i, len(c.Services))
			return
		}
		fmt.Fprintf(out, "\n%s:%s (%s, %s) differs for %s: up to %s, %s in the mean\n", s.Service, s.Port, s.Protocol, s.Family, roundedSeconds(s.Seconds),
			shareText(s.MaxDivergence), shareText(s.MeanDivergence))
		w := printer.NewTable(out)
		for j := range s.Periods {
			if j == maxTextPeriods {
				break
			}
			p := &s.Periods[j]
			fmt.Fprintf(w, "  %s to %s\tCANDIDATE\tBASELINE\t%s elsewhere through %s at %s\n", p.From.Format("15:04:05.000"), p.To.Format("15:04:05.000"), shareText(p.Divergence), p.Frontend, p.At.Format("15:04:05.000"))
			for k := range p.Endpoints {
				if k == maxTextEndpoints {
					fmt.Fprintf(w, "    …\t\t\t\n")
					break
				}
				e := &p.Endpoints[k]
				what := ""
				if e.Pod != "" {
					what = "Pod " + e.Pod
				}
				if e.Zone != "" {
					what += " zone " + e.Zone
				}
				fmt.Fprintf(w, "    %s\t%s\t%s\t%s\n", e.Address, shareText(e.Candidate), shareText(e.Baseline), strings.TrimSpace(what))
			}
		}
		w.Flush()
		if more := len(s.Periods) - maxTextPeriods + s.Omitted; more > 0 {
			fmt.Fprintf(out, "  and %d more times\n", more)
		}
	}
}
