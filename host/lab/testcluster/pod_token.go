package testcluster

import (
	"context"
	"fmt"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// PodKubeconfig creates a Pod of a service account on a Node, and writes a kubeconfig with the Pod's token, which names the Node.
// It returns the path of the file.
func (c *Cluster) PodKubeconfig(ctx context.Context, namespace, account, node string) (string, error) {
	name := account + "-" + node
	pod, err := c.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "lab.invalid/main"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("Pod %s/%s: create: %w", namespace, name, err)
	}
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ServiceAccount %s/%s: ask for a token: %w", namespace, account, err)
	}
	return c.kubeconfig("pod-"+namespace+"-"+name, &clientcmdapi.AuthInfo{Token: token.Status.Token})
}
