package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/config/migrate"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

func newConfigMigrateCommand() *cobra.Command {
	var o migrate.Options
	var strict, defaults bool
	cmd := &cobra.Command{
		Use:   "migrate FILE | -- FLAGS",
		Short: "Convert a KubeProxyConfiguration to a SluiceConfiguration",
		Long: `Reads the configuration of kube-proxy (- is standard input) and prints the shortest equivalent SluiceConfiguration.
The input is a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1), a ConfigMap that contains one, also with its
kubeconfig, or a list of such ConfigMaps; a file of kubeadm; a Pod or DaemonSet that runs kube-proxy, or its command line,
also in the log of k3s or RKE2. After --, the flags of kube-proxy.

Standard error lists what behaves differently, then settings that are lost, then those that are written in another way.
What kube-proxy ignores is in the third list: metadata, fields that it no longer has, the first of a key that is there twice.
With --strict, a lost setting is an error. Unknown fields are always errors.`,
		Example: `  kubectl -n kube-system get configmap kube-proxy -o yaml | sluice config migrate --for daemonset - > sluice.yaml
  journalctl -u k3s | sluice config migrate --for host -
  sluice config migrate -- --cluster-cidr=10.42.0.0/16 --proxy-mode=iptables`,
		Args: migrateArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.For != migrate.ForHost && o.For != migrate.ForDaemonSet {
				return usageError{fmt.Errorf("--for %q: must be %s or %s", o.For, migrate.ForDaemonSet, migrate.ForHost)}
			}
			name, files := "flags", args
			var text []byte
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				files, o.Flags = args[:at], args[at:]
			}
			if len(files) > 0 {
				var err error
				name = files[0]
				if text, err = readInput(cmd.InOrStdin(), name); err != nil {
					return fmt.Errorf("config migrate: %w", err)
				}
			}
			o.ReadKubeconfig = readKubeconfigServer
			out, notes, err := migrate.KubeProxy(text, o)
			if err != nil {
				return config.PrefixErrors(name, err)
			}
			lost := printNotes(cmd.ErrOrStderr(), notes, defaults)
			if strict && lost > 0 {
				return fmt.Errorf("%s: --strict: settings are lost: %d", name, lost)
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	cmd.Flags().StringVar(&o.For, "for", migrate.ForHost, "where sluice will run: daemonset (deploy/kustomize) or host")
	cmd.Flags().StringVar(&o.Server, "server", "", "URL of the API server (default: that of the kubeconfig in the input)")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail if a setting is lost")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "list default values that are omitted")
	return cmd
}

// migrateArgs accepts one file, flags of kube-proxy after --, or both.
func migrateArgs(cmd *cobra.Command, args []string) error {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		return oneArg("file")(cmd, args)
	}
	if at > 1 {
		return oneArg("file")(cmd, args[:at])
	}
	if len(args) == 0 {
		return usageError{errors.New("config migrate: no flags of kube-proxy after --")}
	}
	return nil
}

// printNotes prints the notes by kind, and returns how many settings are lost.
func printNotes(w io.Writer, notes []migrate.Note, defaults bool) (lost int) {
	titles := map[migrate.NoteKind]string{migrate.Behavior: "behaves differently", migrate.Lost: "lost", migrate.Changed: "changed", migrate.Omitted: "default values"}
	last, omitted := migrate.NoteKind(-1), 0
	for _, n := range notes {
		if n.Kind == migrate.Lost {
			lost++
		}
		if n.Kind == migrate.Omitted && !defaults {
			omitted += n.Fields()
			continue
		}
		if n.Kind != last {
			fmt.Fprintf(w, "%s:\n", titles[n.Kind])
			last = n.Kind
		}
		fmt.Fprintf(w, "  %s\n", printable.Escape(n.String()))
	}
	if omitted > 0 {
		fmt.Fprintf(w, "default values omitted: %d (--defaults lists them)\n", omitted)
	}
	return lost
}

// readKubeconfigServer returns the API server's URL in a file, or "" if there is none.
func readKubeconfigServer(file string) string {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, err := safefile.Read(file, 1<<20)
	if err != nil {
		return ""
	}
	return migrate.KubeconfigServer(b)
}
