package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// valuesWait is how long plugins are not called because the values of keys that they declare have not been read. Then the values
// are absent: a decision without them is better than none, which would be the default rules or one for earlier endpoints.
const valuesWait = 30 * time.Second

// errValuesUnknown is the error of a plugin that declares a key before its values are read.
var errValuesUnknown = fmt.Errorf("%w: values of keys that the plugin declares have not been read yet", ErrPending)

// unread reports whether the values of a declared key have not been read.
func (in *Input) unread(key string) bool {
	switch kind, name, _ := abi.KeyKind(key); {
	case abi.IsPodKey(key):
		return in.Pods.Pending
	case kind == abi.KeyNodeLabel:
		return !in.Labels.NodesRead.Has(name)
	case kind == abi.KeyNamespaceLabel:
		return !in.Labels.NamespacesRead.Has(name)
	case kind == abi.KeyLoad:
		return !in.Labels.LoadRead.Has(name)
	}
	return false
}

// unread returns the keys for whose values the plugins that declare them have to wait, given those of the chain.
func (ch *chain) unread(in *Input, keys []string, nowMS int64) (unread []string) {
	for _, k := range keys {
		if in.unread(k) {
			unread = append(unread, k)
		}
	}
	switch {
	case len(unread) == 0:
		ch.unreadSince = 0
	case ch.unreadSince == 0:
		ch.unreadSince = nowMS
	case nowMS >= ch.unreadSince+valuesWait.Milliseconds():
		return nil
	}
	return unread
}

// untilRead returns the earlier of a requeue time and the end of the wait for values, if err is that wait.
func (ch *chain) untilRead(err error, requeueAt time.Time) time.Time {
	end := time.UnixMilli(ch.unreadSince).Add(valuesWait)
	if errors.Is(err, errValuesUnknown) && (requeueAt.IsZero() || end.Before(requeueAt)) {
		return end
	}
	return requeueAt
}

// declaredKey is a declared key in parts.
type declaredKey struct{ kind, name string }

// addValues adds the values of the declared keys to the request.
func (b *requests) addValues(c *Call, in *Input) {
	if len(c.keys) == 0 {
		return
	}
	c.endpointKeys, c.serviceValues = c.endpointKeys[:0], c.serviceValues[:0]
	for _, k := range c.keys {
		kind, name, _ := abi.KeyKind(k)
		switch {
		case abi.IsEndpointKey(k):
			c.endpointKeys = append(c.endpointKeys, declaredKey{kind, name})
		case kind == abi.KeyServiceLabel:
			c.serviceValues = append(c.serviceValues, present(lookup(in.Service.Labels, name)))
		case kind == abi.KeyNamespaceLabel:
			var v abi.Value
			if n := in.Labels.Namespace; n != nil {
				v = present(lookup(n.Labels, name))
			}
			c.serviceValues = append(c.serviceValues, v)
		default:
			c.serviceValues = append(c.serviceValues, present(in.Service.Annotations.Get(name)))
		}
	}
	r := &c.Request
	r.ServiceValues = c.serviceValues
	n := len(c.endpointKeys)
	if n == 0 {
		return
	}
	c.values = slices.Grow(c.values[:0], n*len(r.Endpoints))[:n*len(r.Endpoints)]
	full := slices.Contains(c.endpointKeys, declaredKey{kind: abi.KeyPodCPU})
	for j, i := range b.portIndex {
		ep := &r.Endpoints[j]
		ep.Values = c.values[j*n : (j+1)*n : (j+1)*n]
		var pod *model.Pod
		if name := in.Port.Endpoints[i].Pod; name != "" {
			pod = in.Pods.All[model.Name{Namespace: r.Namespace, Name: name}]
		}
		node, load := in.Labels.Nodes[ep.Node], in.Labels.Load[ep.Addr.Addr()]
		for k := range c.endpointKeys {
			ep.Values[k] = c.endpointKeys[k].of(pod, node, load)
		}
		// The condition is read with whole Pods only. What no plugin of the chain asks for does not count.
		if full && pod != nil && pod.ReadySince != 0 && ep.Conditions&abi.Ready != 0 {
			ep.ReadySince = min(pod.ReadySince, r.Now)
		}
	}
}

// of returns the value of a key of an endpoint's Pod or Node, or of the load that it reports, which may be nil.
func (k *declaredKey) of(pod *model.Pod, node *model.Node, load map[string]string) abi.Value {
	switch {
	case k.kind == abi.KeyLoad:
		return present(lookup(load, k.name))
	case k.kind == abi.KeyNodeLabel && node != nil:
		return present(lookup(node.Labels, k.name))
	case k.kind == abi.KeyNodeLabel || pod == nil:
		return abi.Value{}
	case k.kind == abi.KeyPodLabel:
		return present(lookup(pod.Labels, k.name))
	case k.kind == abi.KeyPodAnnotation:
		return present(lookup(pod.Annotations, k.name))
	}
	return present(strconv.FormatInt(pod.MilliCPU, 10), pod.MilliCPU > 0)
}

func lookup(values map[string]string, key string) (string, bool) {
	text, ok := values[key]
	return text, ok
}

// present returns a value. One that is too long is absent.
func present(text string, ok bool) abi.Value {
	if !ok || len(text) > model.MaxAnnotation {
		return abi.Value{}
	}
	return abi.Value{Text: text, Present: true}
}
