// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* A stand-in for nvidia-uvm.ko: its character device, which CUDA opens before anything else works. */
#include <linux/fs.h>
#include <linux/module.h>

static int major_number;

static int open_node(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = open_node,
};

static int __init load(void)
{
	major_number = register_chrdev(0, "nvidia-uvm", &node_operations);
	return major_number < 0 ? major_number : 0;
}

static void __exit unload(void)
{
	unregister_chrdev(major_number, "nvidia-uvm");
}

module_init(load);
module_exit(unload);
MODULE_DESCRIPTION("A stand-in for tests");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("570.133.07");
