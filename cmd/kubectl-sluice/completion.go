package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// completionTimeout bounds asking the API server while a user waits for the shell; maxCompletions the names that it is asked for.
const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 500
)

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// addCompletions completes the flags that several commands have.
func (o *options) addCompletions(root *cobra.Command) {
	_ = root.RegisterFlagCompletionFunc("namespace", o.completeNamespaces) // an error means that there is one already
	_ = root.RegisterFlagCompletionFunc("sluice-namespace", o.completeNamespaces)
	for _, cmd := range root.Commands() {
		for name, f := range map[string]completion{"node": o.completeNodes, "pod": o.completePods} {
			if cmd.Flag(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, f)
			}
		}
	}
}

// names returns names of the cluster; none if it does not answer in time.
func (o *options) names(list func(context.Context, *cluster, metav1.ListOptions) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	c, err := o.cluster()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := list(ctx, c, metav1.ListOptions{Limit: maxCompletions})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (o *options) completeNamespaces(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return o.names(func(ctx context.Context, c *cluster, options metav1.ListOptions) (out []string, err error) {
		var list corev1.NamespaceList
		err = c.objects.list(ctx, "namespaces", "", options, &list)
		for i := range list.Items {
			out = append(out, list.Items[i].Name)
		}
		return out, err
	})
}

func (o *options) completeNodes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return o.names(func(ctx context.Context, c *cluster, options metav1.ListOptions) (out []string, err error) {
		options.LabelSelector = c.selector
		var list corev1.PodList
		err = c.objects.list(ctx, "pods", c.agentNamespace, options, &list)
		for i := range list.Items {
			out = append(out, list.Items[i].Spec.NodeName)
		}
		return out, err
	})
}

// completePods completes [NAMESPACE/]NAME.
func (o *options) completePods(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return o.names(func(ctx context.Context, c *cluster, options metav1.ListOptions) (out []string, err error) {
		namespace, of := c.prefix(prefix)
		var list corev1.PodList
		err = c.objects.list(ctx, "pods", namespace, options, &list)
		for i := range list.Items {
			out = append(out, of+list.Items[i].Name)
		}
		return out, err
	})
}

// completeServices completes [NAMESPACE/]NAME.
func (o *options) completeServices(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(func(ctx context.Context, c *cluster, options metav1.ListOptions) (out []string, err error) {
		namespace, of := c.prefix(prefix)
		var list corev1.ServiceList
		err = c.objects.list(ctx, "services", namespace, options, &list)
		for i := range list.Items {
			out = append(out, of+list.Items[i].Name)
		}
		return out, err
	})
}

// prefix returns the namespace of a name that is being typed, and what of it is before the name.
func (c *cluster) prefix(text string) (namespace, before string) {
	if i := strings.IndexByte(text, '/'); i >= 0 {
		return text[:i], text[:i+1]
	}
	return c.namespace, ""
}
