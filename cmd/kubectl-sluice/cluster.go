package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

const (
	serviceAccount = "sluice-viewer"
	// statePort is the name of the Pod's port for the state API; defaultPort is its number if the Pod names none.
	statePort   = "state"
	defaultPort = 10252
	pageSize    = 500 // objects of a list request
	// parallel is how many nodes are asked at a time.
	parallel = 16
)

// options are flags of all commands.
type options struct {
	kubeconfig, context, namespace, agentNamespace, selector string
	timeout                                                  time.Duration

	loaded *cluster
}

func (o *options) register(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, or ~/.kube/config)")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of Services and Pods (default: that of the context)")
	f.StringVar(&o.agentNamespace, "sluice-namespace", "sluice-system", "namespace in which sluice runs")
	f.StringVar(&o.selector, "sluice-selector", "app.kubernetes.io/name=sluice", "label selector of its Pods")
	flagrange.Duration(f, &o.timeout, "timeout", defaultTimeout, time.Millisecond, time.Hour, "time for a node to answer")
}

// cluster is a cluster and what is asked of it.
type cluster struct {
	*options
	config  *rest.Config
	objects *objects
}

// cluster reads the kubeconfig.
func (o *options) cluster() (*cluster, error) {
	if o.loaded != nil {
		return o.loaded, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if o.namespace == "" {
		if o.namespace, _, err = loader.Namespace(); err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	config.UserAgent = "kubectl-sluice/" + version
	config.QPS, config.Burst = 50, 2*parallel
	objects, err := newObjects(config)
	if err != nil {
		return nil, err
	}
	o.loaded = &cluster{o, config, objects}
	return o.loaded, nil
}

// agent is the sluice of a node.
type agent struct {
	cluster *cluster
	node    string
	pod     string // "": the node has none
	port    int32
	problem string // why it cannot be asked; "": it can
}

// agents returns the agents of all Nodes of Linux, sorted by their names, also of those without a Pod.
func (c *cluster) agents(ctx context.Context) ([]*agent, error) {
	byNode := map[string]*agent{}
	err := c.eachPod(ctx, c.agentNamespace, c.selector, func(p *corev1.Pod) {
		a := c.agentOf(p)
		if old := byNode[a.node]; old == nil || old.problem != "" {
			byNode[a.node] = a
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of sluice: %w", err)
	}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		var nodes corev1.NodeList
		err := c.objects.list(ctx, "nodes", "", options, &nodes)
		if apierrors.IsForbidden(err) {
			break // the Nodes without a Pod are not shown
		} else if err != nil {
			return nil, err
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if os := n.Labels[corev1.LabelOSStable]; byNode[n.Name] == nil && (os == "" || os == "linux") {
				byNode[n.Name] = &agent{cluster: c, node: n.Name, problem: "no Pod of sluice runs there"}
			}
		}
		if options.Continue = nodes.Continue; options.Continue == "" {
			break
		}
	}
	var out []*agent
	for _, a := range byNode {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *agent) int { return strings.Compare(a.node, b.node) })
	if len(out) == 0 {
		return nil, fmt.Errorf("no Pod in namespace %s has the labels %s; --sluice-namespace and --sluice-selector name others", c.agentNamespace, c.selector)
	}
	return out, nil
}

func (c *cluster) eachPod(ctx context.Context, namespace, selector string, each func(*corev1.Pod)) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		var pods corev1.PodList
		if err := c.objects.list(ctx, "pods", namespace, options, &pods); err != nil {
			return err
		}
		for i := range pods.Items {
			each(&pods.Items[i])
		}
		if options.Continue = pods.Continue; options.Continue == "" {
			return nil
		}
	}
}

func (c *cluster) agentOf(p *corev1.Pod) *agent {
	a := &agent{cluster: c, node: p.Spec.NodeName, pod: p.Name, port: defaultPort}
	for i := range p.Spec.Containers {
		for _, port := range p.Spec.Containers[i].Ports {
			if port.Name == statePort {
				a.port = port.ContainerPort
			}
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		a.problem = "its Pod " + p.Name + " is " + cmp.Or(string(p.Status.Phase), "not running")
	}
	return a
}

// selected returns the agents of the named Nodes, or all.
func (c *cluster) selected(ctx context.Context, nodes []string) ([]*agent, error) {
	all, err := c.agents(ctx)
	if err != nil || len(nodes) == 0 {
		return all, err
	}
	var out []*agent
	for _, name := range nodes {
		i := slices.IndexFunc(all, func(a *agent) bool { return a.node == name })
		if i < 0 {
			var names []string
			for _, a := range all {
				names = append(names, a.node)
			}
			return nil, fmt.Errorf("no Node %s%s", name, spelling.DidYouMean(name, names))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// nodeFlags select the node to ask.
type nodeFlags struct{ node, pod string }

func (f *nodeFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.node, "node", "", "ask the sluice of this Node")
	cmd.Flags().StringVar(&f.pod, "pod", "", "ask the sluice of the Node of this Pod, [NAMESPACE/]NAME")
	cmd.MarkFlagsMutuallyExclusive("node", "pod")
}

// agent returns the agent that the flags select: without any, the first one that runs.
func (f *nodeFlags) agent(ctx context.Context, c *cluster) (*agent, error) {
	node := f.node
	if f.pod != "" {
		var err error
		if node, err = c.nodeOf(ctx, f.pod); err != nil {
			return nil, err
		}
	}
	if node != "" {
		all, err := c.selected(ctx, []string{node})
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	all, err := c.agents(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.problem == "" {
			return a, nil
		}
	}
	return nil, fmt.Errorf("node %s: %s", all[0].node, all[0].problem)
}

// nodeOf returns the Node of a Pod.
func (c *cluster) nodeOf(ctx context.Context, pod string) (string, error) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok {
		namespace, name = c.namespace, pod
	}
	p, err := c.objects.pod(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	if p.Spec.NodeName == "" {
		return "", fmt.Errorf("Pod %s/%s is not scheduled yet", namespace, name)
	}
	return p.Spec.NodeName, nil
}

// connect returns a client of an agent's state API. The context bounds its requests too.
func (a *agent) connect(ctx context.Context) (*stateclient.Client, error) {
	if a.problem != "" {
		return nil, errors.New(a.problem)
	}
	c := a.cluster
	token, err := c.objects.token(ctx, c.agentNamespace, serviceAccount, api.Audience(a.node))
	if err != nil {
		return nil, err
	}
	return stateclient.NewClient("on node "+a.node, func(ctx context.Context) (net.Conn, error) {
		return c.forward(ctx, a.pod, a.port)
	}, token), nil
}

// ask connects to an agent and calls f, for as long as a node may take.
func (a *agent) ask(ctx context.Context, f func(context.Context, *stateclient.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.cluster.timeout)
	defer cancel()
	client, err := a.connect(ctx)
	if err == nil {
		err = f(ctx, client)
	}
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s (--timeout): %w", a.cluster.timeout, err)
	}
	return fmt.Errorf("node %s: %w", a.node, err)
}

// askAll asks agents side by side, so that one that is slow holds no other up. f is called concurrently, with the index of the
// agent.
func askAll(ctx context.Context, all []*agent, f func(context.Context, int, *stateclient.Client) error) []error {
	errs := make([]error, len(all))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(parallel, len(all)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = all[i].ask(ctx, func(ctx context.Context, client *stateclient.Client) error { return f(ctx, i, client) })
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	wg.Wait()
	return errs
}
