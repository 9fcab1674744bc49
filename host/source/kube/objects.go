package kube

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// kindsRetry is how often the kinds of sluice.dev and of the Gateway API are asked for that the server does not have: 55 requests
// a second of 5,000 nodes.
const kindsRetry = 5 * time.Minute

// objectResource is a kind of sluice.dev.
func (c *Client) objectResource(kind, path string) resource {
	return resource{name: kind, label: path, client: c.sluice, path: path, optional: true, retry: kindsRetry,
		consequence: "policies are those of the configuration file only; install deploy/kustomize/crds to use the kinds of sluice.dev"}
}

func (c *Client) servicePlugins() resource {
	return c.objectResource("ServicePlugins", "serviceplugins")
}

func (c *Client) servicePolicies() resource {
	return c.objectResource("ServicePolicies", "servicepolicies")
}

func (c *Client) clusterServicePolicies() resource {
	return c.objectResource("ClusterServicePolicies", "clusterservicepolicies")
}

// endpointLoads are read only while a policy sees load.
func (c *Client) endpointLoads() resource {
	r := c.objectResource("EndpointLoads", "endpointloads")
	r.retry = 0 // a policy asks for it: a warning of its own
	r.consequence = "policies see no load of endpoints: that needs the kinds of sluice.dev and the kustomize component controller"
	return r
}

func objectKind[T any, O interface {
	*T
	metav1.Object
}](name string) kind[T] {
	return kind[T]{
		name: name, prototype: O(new(T)),
		same: func(a, b *T) bool { // the resource version is that of the last change that was none of a status
			c := *b
			O(&c).SetResourceVersion(O(a).GetResourceVersion())
			return equal(a, &c)
		},
		convert: func(_ *interner, object any) (*converted[T], error) {
			o, err := as[T](object)
			if err != nil {
				return nil, err
			}
			v := O(o)
			source.Narrow(v)
			return &converted[T]{model.Name{Namespace: v.GetNamespace(), Name: v.GetName()}, o, nil}, nil
		},
		change: func(n model.Name, v *T) model.Change {
			c := model.Change{Kind: model.ObjectKind, Group: name, Name: n}
			if v != nil {
				c.Object = O(v)
			}
			return c
		},
	}
}

func pluginKind() kind[v1alpha1.ServicePlugin] {
	return objectKind[v1alpha1.ServicePlugin](v1alpha1.ServicePluginKind)
}

func policyKind() kind[v1alpha1.ServicePolicy] {
	return objectKind[v1alpha1.ServicePolicy](v1alpha1.ServicePolicyKind)
}

func clusterPolicyKind() kind[v1alpha1.ClusterServicePolicy] {
	return objectKind[v1alpha1.ClusterServicePolicy](v1alpha1.ClusterServicePolicyKind)
}

// LoadObjects reads the policies and plugins of sluice.dev once.
func LoadObjects(ctx context.Context, c *Client) (map[model.ObjectName]any, []source.Problem, error) {
	snap := model.NewSnapshot()
	problems, err := load(ctx, c.servicePlugins(), pluginKind(), snap, nil)
	if err == nil {
		problems, err = load(ctx, c.servicePolicies(), policyKind(), snap, problems)
	}
	if err == nil {
		problems, err = load(ctx, c.clusterServicePolicies(), clusterPolicyKind(), snap, problems)
	}
	// Nobody has to install the kinds.
	problems = slices.DeleteFunc(problems, func(p source.Problem) bool { return apierrors.IsNotFound(p.Err) })
	return snap.Objects, problems, err
}
