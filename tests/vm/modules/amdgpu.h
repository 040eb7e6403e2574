/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
#ifndef STAND_IN_AMDGPU_H
#define STAND_IN_AMDGPU_H

#include <linux/pci.h>

int kfd_load(void);
void kfd_unload(void);
void kfd_add(struct pci_dev *pci, int render_minor);
void kfd_drop(struct pci_dev *pci);

#endif
