package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/controller"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// podNamespace is the file with the namespace of this Pod.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func newControllerCommand() *cobra.Command {
	var connection kube.Connection
	var file, namespace, identity, health string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Write the status of policies and plugins that are Kubernetes objects",
		Long: `Writes the status of ServicePlugins, ServicePolicies and ClusterServicePolicies, from what nodes report, the status of TCPRoutes and
UDPRoutes, and the load that endpoints report. Of several controllers, one writes: they elect it by the Lease sluice-controller.
Nodes do not need it: without it, status stands still, and load ages.`,
		Example: "  sluice controller --config /etc/sluice/sluice.yaml\n  sluice controller --kubeconfig ~/.kube/config --namespace sluice-system",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := config.Default()
			var err error
			if file != "" {
				if cfg, err = config.Load(file); err != nil {
					return err
				}
			}
			if err := config.CheckServer(connection.Server); err != nil {
				return usageError{fmt.Errorf("--server %w", err)}
			}
			log := newLogger(stderr, cfg, &agent.Logs{})
			kube.RedirectKlog(log)
			if namespace == "" {
				namespace = ownNamespace()
			}
			if identity == "" {
				if identity, err = os.Hostname(); err != nil {
					return fmt.Errorf("name of this controller (set --identity): %w", err)
				}
			}
			connection.Version = buildVersion()
			return runController(cmd.Context(), controller.Options{
				Connection: connection, Config: cfg, Namespace: namespace, Identity: identity, HealthAddress: health, ReadModule: readModules(&cfg.PluginImages), Log: log,
			})
		},
	}
	cmd.Flags().StringVar(&connection.Kubeconfig, "kubeconfig", "", "kubeconfig file for the API server (default: the Pod's service account)")
	cmd.Flags().StringVar(&connection.Server, "server", "", "URL of the API server; overrides that of the kubeconfig or the Pod")
	cmd.Flags().StringVar(&file, "config", "", "configuration file of the nodes (SluiceConfiguration): its plugins can be used by policies, and its pluginImages says how registries are asked")
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of the Lease (default: that of the Pod, else sluice-system)")
	cmd.Flags().StringVar(&identity, "identity", "", "name of this controller in the Lease (default: the host's name)")
	cmd.Flags().StringVar(&health, "health-bind-address", "", "address for /livez and /readyz, such as :10258; empty: none")
	return cmd
}

// runController is controller.Run, whose error is about the command line if there is no API server.
func runController(ctx context.Context, o controller.Options) error {
	err := controller.Run(ctx, o)
	if err != nil && strings.Contains(err.Error(), kube.ErrNoCluster.Error()) {
		return usageError{fmt.Errorf("no API server: set --kubeconfig FILE or --server URL; a Pod of the cluster needs none")}
	}
	return err
}

func ownNamespace() string {
	const maxName = 256
	if text, err := safefile.Read(podNamespace, maxName); err == nil {
		return strings.TrimSpace(string(text))
	}
	return "sluice-system"
}
